"""Common parts of the tests of the Gymnasium adapter: the classes, and environments to compare them on."""

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


def cartpole(**options: Any) -> gymnasium.Env[Any, Any]:
    """CartPole with a copy of its metadata, because Gymnasium's classes write into it."""
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


class Typing(CountingEnv):
    """Takes any action, and says what it was."""

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        super().__init__()
        self.action_space = action_space

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, *ends, _ = super().step(0)
        return observation, 0.0, ends[0], ends[1], {"action": _describe(action)}


def _describe(action: Any) -> str:
    if isinstance(action, dict):
        return str({key: _describe(value) for key, value in action.items()})
    if isinstance(action, tuple):
        return str([_describe(value) for value in action])
    return f"{type(action).__name__} {getattr(action, 'dtype', '')} {action}"
