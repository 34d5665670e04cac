"""Environments that go wrong in a step of choice; workers import them, and nothing that takes seconds."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation


class Cliff(gymnasium.Env[Any, Any]):
    """Rewards of any size; raises, or gives NaN, in a step of choice."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: Any = spaces.Discrete(2)
    metadata: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]  # an instance variable in Gymnasium's Env

    def __init__(self, raises_at: int = -1, nan_at: int = -1) -> None:
        self._raises_at, self._nan_at, self._step, self._total = raises_at, nan_at, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step, self._total = self._step + 1, self._total + 1
        if self._total == self._raises_at:
            raise RuntimeError("the ice broke")
        reward = float("nan") if self._total == self._nan_at else 1.0
        return np.zeros(2, np.float32), reward, self._step == 7, False, {}


def breaking() -> Cliff:
    return Cliff(raises_at=30)


def fragile() -> Cliff:
    return Cliff(raises_at=6)


def large_reward() -> Any:
    return gymnasium.wrappers.TransformReward(Cliff(), lambda reward: 1e300 * float(reward))


def large_observation() -> Any:
    space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    return TransformObservation(Cliff(), lambda _: np.full(2, 1e300), space)


class Elsewhere(Cliff):
    """Plays in workers alone."""

    def reset(self, **more: Any) -> Any:
        if str(os.getpid()) == os.environ["TRAINER"]:
            raise RuntimeError("this is the trainer's process")
        return super().reset(**more)


def unsound() -> Cliff:
    return Cliff(nan_at=40)


class Blur(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Sees nothing of the angle after a while."""

    def observation(self, observation: Any) -> Any:
        self.count = getattr(self, "count", 0) + 1
        return np.where(np.arange(4) == 2, np.nan, observation) if self.count > 30 else observation


def blurred() -> Any:
    return Blur(gymnasium.make("CartPole-v1"))


class BlurredAtTheEnd(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sees nothing of the angle in the last observation of an episode."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return np.where((np.arange(4) == 2) & terminated, np.nan, observation), reward, terminated, truncated, info


def blurred_at_the_end() -> Any:
    return BlurredAtTheEnd(gymnasium.make("CartPole-v1"))


class BlurredAtFirst(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sees nothing of the angle in the first observation of an episode."""

    def reset(self, **more: Any) -> Any:
        observation, info = super().reset(**more)
        return np.where(np.arange(4) == 2, np.nan, observation), info


def blurred_at_first() -> Any:
    return BlurredAtFirst(gymnasium.make("CartPole-v1"))


def blurred_in_part() -> Any:
    space = spaces.Dict(clock=spaces.Discrete(9), poles=spaces.Box(-np.inf, np.inf, (4,), np.float32))
    return TransformObservation(blurred(), lambda poles: {"clock": 1, "poles": np.float32(poles)}, space)


def beyond() -> Any:
    return TransformObservation(Cliff(), lambda _: 12, spaces.Discrete(5, start=7))


def beyond_in_part() -> Any:
    space = spaces.Dict(pole=spaces.Box(0.0, 1.0, (1,)), dials=spaces.MultiDiscrete([3, 4]))
    return TransformObservation(Cliff(), lambda _: {"pole": np.zeros(1, np.float32), "dials": np.array([2, 4])}, space)
