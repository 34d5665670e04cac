"""Scalar arithmetic of the classic environments, without branches, so that loops over it vectorize."""

from __future__ import annotations

import math

import numpy as np

_TURN = 2.0 * math.pi
# A float64 of this size holds no digits behind the point, so that adding and taking it away rounds to a whole number.
_WHOLE = 1.5 * 2.0**52


def clip(value: float, low: float, high: float) -> float:
    """Bound `value` to `[low, high]`."""
    return min(max(value, low), high)


def single(value: float) -> float:
    """Round to float32: one rounding of a float64 sum or product equals Gymnasium's float32 arithmetic."""
    return np.float64(np.float32(value))  # float() of a float32 is a float32 when compiled


def wrap_angle(angle: float) -> float:
    """Return an angle in radians wrapped to [-π, π]; |angle| must be below 1e15."""
    turns = (angle * (1.0 / _TURN) + _WHOLE) - _WHOLE
    return angle - turns * _TURN
