"""Location of a failure in its message and traceback."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import envfleet
from envfleet.errors import SubEnvError
from envfleet.testing import CountingEnv

OURS = str(Path(envfleet.__file__).parent)


class RaisingEnv(CountingEnv):
    def step(self, action: Any) -> Any:
        raise ArithmeticError("lost count")


class MisshapenEnv(CountingEnv):
    def step(self, action: Any) -> Any:
        return np.zeros(9), 0.0, False, False, {}


class OddArray:
    def __array__(self, *args: Any) -> Any:
        raise LookupError("nothing in it")


class OddEnv(CountingEnv):
    def step(self, action: Any) -> Any:
        return OddArray(), 0.0, False, False, {}


def error_of(env: type[CountingEnv]) -> SubEnvError:
    with envfleet.make(env, 1, backend="serial") as fleet:
        fleet.reset(seed=0)
        with pytest.raises(SubEnvError) as caught:
            fleet.step([0])
    return caught.value


def test_tracebacks_begin_in_the_code_that_raised() -> None:
    error = error_of(RaisingEnv)
    assert OURS not in error.failures[0].traceback
    assert "lost count" in error.failures[0].traceback
    assert error.__cause__ is not None
    assert error.__cause__.__traceback__ is not None
    assert error.__cause__.__traceback__.tb_frame.f_code.co_filename == __file__


def test_steps_are_counted_before_the_one_that_failed() -> None:
    failure = error_of(RaisingEnv).failures[0]
    assert failure.place.startswith("step after 0 steps of its episode, last seeded with 0")
    assert dataclasses.replace(failure, step=1).place.startswith("step after 1 step of its episode")


def test_what_the_fleet_found_out_itself_has_none() -> None:
    error = error_of(MisshapenEnv)
    assert "expected (5,)" in str(error)
    assert "Traceback" not in str(error)
    assert error.__cause__ is not None
    assert error.__cause__.__context__ is None


def test_what_raised_behind_it_is_shown() -> None:
    error = error_of(OddEnv)
    assert "LookupError: nothing in it" in error.failures[0].traceback
    assert "in __array__" in error.failures[0].traceback
    assert OURS not in error.failures[0].traceback
