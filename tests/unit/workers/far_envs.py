"""Environments for workers over TCP, in a separate module, so that workers do not import the tests."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envfleet.testing import CountingEnv


class ImageEnv(gym.Env[Any, Any]):
    """Observes and takes parts of all kinds, among them of no fixed shape."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (40, 30, 3), np.uint8), "none": spaces.Box(0, 1, (0,)), "text": spaces.Text(9)}
    )
    action_space = spaces.Tuple((spaces.Discrete(3), spaces.Sequence(spaces.Discrete(5))))

    def __init__(self, length: int) -> None:
        self.length, self.count = length, 0

    def _observe(self) -> Any:
        image = np.full((40, 30, 3), self.count, np.uint8)
        return {"image": image, "none": np.zeros(0, np.float32), "text": "x" * (1 + self.count % 8)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {"seed": seed}

    def step(self, action: Any) -> Any:
        self.count += 1 + int(action[0]) + len(action[1])
        return self._observe(), float(self.count), self.count > self.length, False, {"count": self.count, "what": "x"}


class Hasty(CountingEnv):
    """Does something else than to step, once."""

    def __init__(self, nth: int, act: Any) -> None:
        super().__init__(10**6)
        self.nth, self.act = nth, act

    def step(self, action: Any) -> Any:
        self.nth -= 1
        if self.nth == 0:
            self.act()
        return super().step(action)


class SilentEnv(CountingEnv):
    """Environment without infos."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options=options)[0], {}

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {}


class TableEnv(CountingEnv):
    action_space: Any = spaces.Discrete(1000)

    def __init__(self, table: Any) -> None:
        super().__init__(10**6)
        self.action_space = spaces.Discrete(1000)
        self._table = table

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, _ = super().step(0)
        value = float(self._table[action])
        return observation, value, terminated, truncated, {"double": 2 * value}
