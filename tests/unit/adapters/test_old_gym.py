"""Environments with the interface of the old gym."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.unit.adapters.old_envs import Box, Dict, Discrete, OldEnv, OldWrapper, PairObservation, Tuple

from envfleet.adapters import in_workers
from envfleet.adapters.old_gym import OldGymEnv, modern, modern_space
from envfleet.errors import InvalidArgument
from envfleet.testing import CountingEnv


def test_episode_of_four_values() -> None:
    env = OldGymEnv(OldEnv(length=2))
    assert env.reset(seed=5) == (0, {})
    assert env.old.seeds == [5]
    assert env.step(1) == (1, 1.0, False, False, {})
    assert env.step(1) == (2, 1.0, True, False, {})
    assert env.reset() == (0, {})
    assert env.old.seeds == [5]


def test_time_limit_is_truncation() -> None:
    env = OldGymEnv(OldEnv(length=1, info={"TimeLimit.truncated": True}))
    env.reset()
    assert env.step(0)[2:4] == (False, True)
    not_limited = OldGymEnv(OldEnv(length=1, info={"TimeLimit.truncated": False}))
    not_limited.reset()
    assert not_limited.step(0)[2:4] == (True, False)


def test_the_interface_in_between() -> None:
    """gym 0.26: five values, infos of resets, seeds and options as arguments."""

    class Newer(OldEnv):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(), {"seed": seed, "options": options}

        def step(self, action: Any) -> Any:
            observation, reward, done, info = super().step(action)
            return observation, reward, False, done, info

    env = OldGymEnv(Newer(length=1))
    assert env.reset(seed=3, options={"a": 1}) == (0, {"seed": 3, "options": {"a": 1}})
    assert env.old.seeds == []
    assert env.step(0) == (1, 1.0, False, True, {})


def test_observation_that_looks_like_an_info() -> None:
    env = OldGymEnv(PairObservation())
    assert env.reset() == ((0, {"x": 1}), {})


def test_attributes_of_all_layers() -> None:
    env = OldGymEnv(OldWrapper(OldEnv(length=3)))
    assert env.get_wrapper_attr("length") == 3
    assert in_workers.call_method(env, "shout", (), {}) == "hey"
    assert env.has_wrapper_attr("shout")
    assert not env.has_wrapper_attr("whisper")
    env.set_wrapper_attr("length", 9)
    assert env.old.env.length == 9
    assert "length" not in vars(env.old)
    assert env.set_wrapper_attr("new", 1)
    assert env.old.env.new == 1
    assert not env.set_wrapper_attr("newer", 1, force=False)
    with pytest.raises(AttributeError, match="whisper"):
        env.get_wrapper_attr("whisper")


class Scale(OldWrapper):
    """Has an attribute of its class, a property and a private attribute."""

    scale = 1.0

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._limit = 30

    @property
    def limit(self) -> int:
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit


@pytest.mark.parametrize(("name", "default"), [("scale", 1.0), ("limit", 30), ("_limit", 30)])
def test_attributes_of_an_inner_wrapper(name: str, default: float) -> None:
    env = OldGymEnv(OldWrapper(Scale(OldEnv(length=3))))
    assert env.has_wrapper_attr(name)
    assert env.get_wrapper_attr(name) == default
    assert env.set_wrapper_attr(name, 3, force=False)
    assert env.get_wrapper_attr(name) == getattr(env.old.env, name) == 3
    assert name not in vars(env.old)
    assert name not in vars(env.old.env.env)


def test_an_attribute_called_env_need_not_be_one() -> None:
    old = OldEnv(length=3)
    old.env = "Pong"  # type: ignore[attr-defined]
    env = OldGymEnv(old)
    assert not env.has_wrapper_attr("upper")
    assert env.set_wrapper_attr("new", 1)
    assert env.get_wrapper_attr("new") == 1


def test_rendering() -> None:
    assert OldGymEnv(OldEnv(length=1)).render() == "frame as rgb_array"


def test_spaces() -> None:
    old = Dict({"a": Box(np.zeros(2), np.ones(2), (2,), np.float32), "b": Tuple((Discrete(3), Discrete(4)))})
    expected = spaces.Dict({"a": spaces.Box(0, 1, (2,)), "b": spaces.Tuple((spaces.Discrete(3), spaces.Discrete(4)))})
    assert modern_space(old) == expected
    assert modern_space(expected) is expected
    with pytest.raises(InvalidArgument, match="expected one of"):
        modern_space(object())


def test_what_is_modern_stays() -> None:
    env = CountingEnv()
    assert modern(env) is env
    with pytest.raises(InvalidArgument, match="expected an environment"):
        modern(3)
