"""What the tests of the Gymnasium adapter have in common: the classes, and environments to compare them over."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from envfleet.adapters.gymnasium import AsyncFleet, SyncFleet
from envfleet.testing import CountingEnv, FaultyEnv

ASYNC = (AsyncVectorEnv, AsyncFleet)
SYNC = (SyncVectorEnv, SyncFleet)
BOTH = (AsyncFleet, SyncFleet)
ZEROS = np.zeros(2, int)

Make = Callable[..., Any]
EnvFns = list[Callable[[], gymnasium.Env[Any, Any]]]


def counting(num_envs: int = 3, **options: Any) -> EnvFns:
    return [functools.partial(CountingEnv, **options)] * num_envs


def faulty(fault: str, when: Any = "step", **options: Any) -> list[Any]:
    """Two sub-environments, of which the second fails."""
    return [functools.partial(FaultyEnv, None), functools.partial(FaultyEnv, fault, when, **options)]


class TypedEnv(CountingEnv):
    """Its dict observations are of the dtypes of their space, so that Gymnasium's `final_obs` are, too."""

    def observe(self) -> Any:
        observation = super().observe()
        return {**observation, "count": np.int64(observation["count"])}


def cartpole(**options: Any) -> gymnasium.Env[Any, Any]:
    """CartPole with metadata of its own, because Gymnasium's classes write into those they find."""
    env = gymnasium.make("CartPole-v1", **options)
    env.metadata = dict(env.metadata)
    return env


class BoundedEnv(CountingEnv):
    """Its bounds (and, asked to, its shape or its actions) are its own."""

    def __init__(self, high: float, size: int = 5, num_actions: int = 4) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-high, high, (size,), np.float64)
        self.action_space = spaces.Discrete(num_actions)
        self.size = size

    def observe(self) -> Any:
        return np.zeros(self.size)
