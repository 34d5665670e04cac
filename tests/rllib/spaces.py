"""A small environment with the spaces that RLlib's default module accepts."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ACTION_SPACES: dict[str, spaces.Space[Any]] = {
    "box": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)),
    "discrete": spaces.Discrete(3),
    "multidiscrete": spaces.MultiDiscrete([3, 2]),
}


class Echo(gym.Env[Any, Any]):
    """Checks each action against its space; ends after 5 steps, in turn as terminated and as truncated."""

    def __init__(self, actions: str) -> None:
        self.observation_space = spaces.Dict(
            {"place": spaces.Box(-1, 1, (2,), np.float32), "kind": spaces.Discrete(3), "time": spaces.Box(0, 9, ())}
        )
        self.action_space = ACTION_SPACES[actions]
        self._episodes = 0

    def _observation(self) -> Any:
        return {"place": np.zeros(2, np.float32), "kind": self._steps % 3, "time": np.array(self._steps, np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(np.asarray(action, self.action_space.dtype)), action
        self._steps += 1
        self._episodes += self._steps == 5
        is_last, is_even = self._steps == 5, self._episodes % 2 == 0
        return self._observation(), 1.0, is_last and is_even, is_last and not is_even, {}
