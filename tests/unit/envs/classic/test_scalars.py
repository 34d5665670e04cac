"""Scalar arithmetic against the standard library and NumPy."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled
from hypothesis import example, given
from hypothesis import strategies as st

from envfleet.envs.classic.cartpole import CartPole
from envfleet.envs.classic.scalars import clip, single, wrap_angle

_finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.floats(-1000.0, 1000.0))
@example(math.pi)
@example(-math.pi)
@example(3 * math.pi)
def test_wrapped_angles_are_the_same_angle_within_half_a_turn(angle: float) -> None:
    wrapped = wrap_angle(angle)
    assert abs(wrapped) <= math.pi + 1e-12
    assert math.remainder(wrapped - angle, 2 * math.pi) == pytest.approx(0.0, abs=1e-12)


@given(st.floats(-3 * math.pi, 3 * math.pi, exclude_min=True, exclude_max=True))
def test_one_turn_is_taken_off_exactly(angle: float) -> None:
    turns = round(angle / (2 * math.pi))
    assert wrap_angle(angle) == angle - turns * (2 * math.pi)


@given(_finite, st.floats(-5.0, 0.0), st.floats(0.0, 5.0))
def test_clipped_as_numpy_clips(value: float, low: float, high: float) -> None:
    assert clip(value, low, high) == np.clip(value, low, high)


@given(st.floats(width=64, min_value=-1e30, max_value=1e30))
def test_single_rounds_once(value: float) -> None:
    assert single(value) == np.float32(value)
    assert isinstance(single(value), float)


def test_frames_without_pygame_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    state = CartPole.State()
    state.x = state.x_dot = state.theta = state.theta_dot = 0.0
    with pytest.raises(DependencyNotInstalled, match="pip install"):
        CartPole.render(state, CartPole.Params())
