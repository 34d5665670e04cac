"""Errors about wrong return values name the sub-environment's values, not array internals."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import envfleet
from envfleet.errors import InvalidArgument, SubEnvError
from envfleet.testing import CountingEnv
from envfleet.workers.env_checks import UNSET, check_flags, explain_reset, explain_result


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (np.array([1.5]), "a reward of shape (1,), expected one number"),
        (np.ones((2, 1)), "a reward of shape (2, 1), expected one number"),
        (np.complex64(1j), "the reward np.complex64(1j), expected a number"),
        (None, "the reward None, expected a number"),
    ],
)
def test_a_reward_that_is_no_number(reward: Any, words: str) -> None:
    error = TypeError("memoryview: invalid type for format 'd'")
    explained = explain_result(error, (0, reward, False, False, {}))
    assert isinstance(explained, InvalidArgument)
    assert words in str(explained)
    assert explained.__cause__ is error


@pytest.mark.parametrize("result", [UNSET, (0, np.array(1.5), False, False, {}), (0, np.float16(2), False, False, {})])
def test_what_is_not_to_blame_leaves_the_error(result: Any) -> None:
    error = RuntimeError("something else")
    assert explain_result(error, result) is error


@pytest.mark.parametrize("flag", ["False", b"no", ["no"], {"done": False}])
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_a_flag_that_is_no_bool(flag: Any, name: str) -> None:
    flags: Any = {"terminated": True, "truncated": True, name: flag}
    with pytest.raises(InvalidArgument, match=rf"^step\(\) returned {name}=.*, expected True or False"):
        check_flags(**flags)


@pytest.mark.parametrize("flag", [True, np.True_, 1, np.array(True), np.array([1]), None])
def test_flags_that_count(flag: Any) -> None:
    check_flags(flag, truncated=True)


@pytest.mark.parametrize("error", [ValueError, RuntimeError, AssertionError])
def test_differing_spaces_are_the_errors_that_gymnasium_raises(error: type[Exception]) -> None:
    with pytest.raises(error):
        envfleet.make([lambda: gym.make("CartPole-v1"), lambda: gym.make("Acrobot-v1")], backend="serial")


def test_a_reset_without_gymnasiums_keywords_is_explained() -> None:
    class Old(CountingEnv):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    with envfleet.make(Old, 2, backend="serial") as fleet:
        fleet.reset()  # passes neither
        with pytest.raises(SubEnvError, match=r"reset\(\) got .* 'seed': write `def reset\(self, \*, seed=None"):
            fleet.reset(seed=0)


def test_another_error_of_a_reset_stays() -> None:
    error = TypeError("draw() got an unexpected keyword argument 'seed'")
    assert explain_reset(error, 0, None) is error
