"""Common parts of the tests of the SB3 adapter: constructors, environments, and a comparison."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
)
from tests.unit.adapters.peers import EnvFns

from envfleet.adapters.sb3 import FleetVecEnv
from envfleet.testing import CountingEnv, mismatches
from envfleet.testing.envs import SpaceEnv

SERIAL = functools.partial(FleetVecEnv, backend="serial")


def PROCESS(env_fns: EnvFns, **options: Any) -> FleetVecEnv:  # noqa: N802  like SERIAL
    return FleetVecEnv(env_fns, backend="process", workers=min(2, len(env_fns)), **options)


OURS = [pytest.param(SERIAL, id="serial"), pytest.param(PROCESS, id="process")]
ALL = [pytest.param(DummyVecEnv, id="dummy"), *OURS]


def same(expected: Any, actual: Any) -> None:
    different = mismatches(plain(expected), plain(actual))
    assert not different, different


def plain(value: Any) -> Any:
    """`DummyVecEnv` gives OrderedDicts, and the integers of `terminal_observation` as the environment has them."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, np.integer):
        return int(value)
    return [plain(item) for item in value] if isinstance(value, list) else value


def bare(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key != "episode"}


class KeptInfoEnv(CountingEnv):
    """Nested, sparse and mixed infos, and others at the reset."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *rest, _ = super().step(action)
        info: dict[str, Any] = {"nested": {"count": self.count, "deep": {"text": str(self.count)}}, "array": np.ones(2)}
        if self.count % 2:
            info |= {"odd": True, "half": np.float32(self.count / 2)}
        return *rest, info


ROLLOUTS: dict[str, EnvFns] = {
    "cartpole": [functools.partial(gymnasium.make, "CartPole-v1")] * 3,
    "pendulum": [functools.partial(gymnasium.make, "Pendulum-v1", max_episode_steps=11)] * 3,
    "acrobot": [functools.partial(gymnasium.make, "Acrobot-v1", max_episode_steps=7)] * 2,
    "counting": [functools.partial(CountingEnv, 6, ends="alternate", vary=True)] * 3,
    "truncated": [functools.partial(CountingEnv, 3, ends="truncated")] * 2,
    "dict": [functools.partial(CountingEnv, 3, dict_obs=True)] * 2,
    "infos": [functools.partial(KeptInfoEnv, 4, vary=True)] * 3,
    "tuple": [functools.partial(SpaceEnv, "tuple", "multidiscrete")] * 2,
    "image": [functools.partial(SpaceEnv, "image", "multibinary")] * 2,
    "discrete": [functools.partial(SpaceEnv, "discrete", "discrete")] * 2,
    "tuple actions": [functools.partial(SpaceEnv, "box", "tuple")] * 2,
    "nested actions": [functools.partial(SpaceEnv, "box", "nested")] * 3,
}
