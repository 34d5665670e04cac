"""Functions of a network in float32, as arithmetic that the compiler spreads over a vector unit."""

from __future__ import annotations

import numpy as np

from envfleet.kernels.maths import exp

# tanh(x) = x * P(x * x) / Q(x * x), fitted here for the least relative error, 2.1e-8, on |x| <= 9.
_P0, _P1, _P2 = np.float32(1.0), np.float32(0.13381029665470123), np.float32(0.0034955928567796946)
_P3, _P4 = np.float32(2.0609149942174554e-05), np.float32(1.3354741312809892e-08)
_Q0, _Q1, _Q2 = np.float32(1.0), np.float32(0.4671434462070465), np.float32(0.025877000764012337)
_Q3, _Q4 = np.float32(0.00032856420148164034), np.float32(7.776594088682032e-07)
_MOST, _ONE, _ZERO = np.float32(9.0), np.float32(1.0), np.float32(0.0)


def tanh_32(x: np.float32) -> np.float32:
    """Take the hyperbolic tangent to 4e-7; NaN for NaN."""
    bounded = -_MOST if x < -_MOST else x  # noqa: FURB136 (max and min lose NaN)
    bounded = _MOST if bounded > _MOST else bounded  # noqa: FURB136 (max and min lose NaN)
    z = bounded * bounded
    above = _P0 + z * (_P1 + z * (_P2 + z * (_P3 + z * _P4)))
    below = _Q0 + z * (_Q1 + z * (_Q2 + z * (_Q3 + z * _Q4)))
    value = bounded * above / below
    value = -_ONE if value < -_ONE else value  # noqa: FURB136 (max and min lose NaN)
    return _ONE if value > _ONE else value  # noqa: FURB136 (max and min lose NaN)


def relu_32(x: np.float32) -> np.float32:
    """Take `x` where it is positive, else 0; NaN for NaN."""
    return _ZERO if x < _ZERO else x  # noqa: FURB136 (max and min lose NaN)


def exp_32(x: np.float32) -> np.float32:
    """Take e to the power of `x`."""
    return np.float32(exp(float(x)))
