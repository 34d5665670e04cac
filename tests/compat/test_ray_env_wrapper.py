"""The code that `WrapperRayVecEnv` runs on a worker, without Ray."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from RayEnvWrapper.CustomWrapperRayVecEnv import _builder

from envfleet.errors import InvalidArgument


def test_a_way_to_seed_that_gymnasium_has_not_is_explained() -> None:
    def make_and_seed(seed: int) -> Any:
        env: Any = gym.make("CartPole-v1")
        env.seed(seed)
        return env

    with pytest.raises(InvalidArgument, match=r"write env\.reset\(seed=seed\)"):
        _builder(make_and_seed)(0)


def test_other_mistakes_stay_as_they_are() -> None:
    with pytest.raises(AttributeError, match="sede"):
        _builder(lambda seed: gym.make("CartPole-v1").sede(seed))(0)  # type: ignore[attr-defined]
