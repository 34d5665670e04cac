"""Environments, wrappers and spaces as the old gym had them, written after its documentation."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces


class Box:
    def __init__(self, low: Any, high: Any, shape: tuple[int, ...], dtype: Any) -> None:
        self.low, self.high, self.shape, self.dtype = low, high, shape, np.dtype(dtype)


class Discrete:
    def __init__(self, n: int) -> None:
        self.n = n


class Tuple:
    def __init__(self, members: tuple[Any, ...]) -> None:
        self.spaces = members


class Dict:
    def __init__(self, members: dict[str, Any]) -> None:
        self.spaces = members


class OldEnv:
    """Counts its steps."""

    metadata: ClassVar[dict[str, Any]] = {"render.modes": ["rgb_array"]}

    def __init__(self, length: int, info: dict[str, Any] | None = None) -> None:
        self.observation_space: Any = Discrete(100)
        self.action_space = Discrete(2)
        self.length, self.info = length, info or {}
        self.seeds: list[int] = []

    def seed(self, seed: int) -> list[int]:
        self.seeds.append(seed)
        return [seed]

    def reset(self) -> Any:
        self.count = 0
        return self.count

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.count, 1.0, self.count == self.length, dict(self.info)

    def render(self, mode: str = "human") -> str:
        return f"frame as {mode}"


class OldWrapper:
    """Forwards what it has not, save private names, as gym's wrappers did."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"accessing private attribute '{name}' is prohibited")
        return getattr(self.env, name)

    def shout(self) -> str:
        return "hey"


class PairObservation(OldEnv):
    """Observations that look like an observation and an info."""

    def __init__(self) -> None:
        super().__init__(length=3)
        self.observation_space = Tuple((Discrete(3), Dict({"x": Discrete(2)})))

    def reset(self) -> Any:
        return 0, {"x": 1}


class OldCartPole:
    """Gymnasium's CartPole behind the old interface, with a limit of 30 steps."""

    def __init__(self, seed: int) -> None:
        import gymnasium

        self._env = gymnasium.make("CartPole-v1").unwrapped
        box = self._env.observation_space
        assert isinstance(box, spaces.Box)
        self.observation_space = Dict({"state": Box(box.low, box.high, box.shape, box.dtype)})
        self.action_space = Discrete(2)
        self.seed(seed)

    def seed(self, seed: int) -> list[int]:
        self.first_seed, self._next = seed, seed
        return [seed]

    def reset(self) -> Any:
        self._steps = 0
        observation, _ = self._env.reset(seed=self._next)
        self._next = None  # type: ignore[assignment]  # the generator continues
        return {"state": observation}

    def step(self, action: Any) -> Any:
        observation, reward, done, _, _ = self._env.step(action)
        self._steps += 1
        info = {"TimeLimit.truncated": not done} if self._steps >= 30 else {}
        return {"state": observation}, reward, done or self._steps >= 30, info


def make_and_seed(seed: int) -> Any:
    """Make Gymnasium's CartPole as the README of RayEnvWrapper makes the old one."""
    import gymnasium

    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))
    env.reset(seed=seed)
    return env
