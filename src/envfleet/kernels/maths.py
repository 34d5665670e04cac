"""Sine, cosine, exponential and hyperbolic tangent that LLVM can vectorize.

A call of the C library keeps a loop scalar. These functions are plain arithmetic and conditional expressions, so loops
over them become vector code if they are inlined (`error_model="numpy", forceinline=True`). Uncompiled, on Python
floats, they give the same bits, as long as products and sums are not contracted: numba does not on CPUs, nor on CUDA
with `fma=False`.

Largest errors in 400,000 arguments each, against 40 digits, in units in the last place: `sin` 0.75 and `cos` 0.78
(|x| ≤ 10**5, multiples of a quarter turn included), `exp` 0.84, `tanh` 2.28.

Each polynomial interpolates its function at the Chebyshev nodes of the reduced range; its coefficients are rounded to
float64. The argument is reduced in parts, as in W. J. Cody and W. Waite, "Software Manual for the Elementary Functions"
(1980), and the rounding errors of the last subtractions are added later.

See ADR 11.
"""

from __future__ import annotations

import math

# Adding and subtracting 1.5 * 2**52 rounds to the nearest integer, ties to even, wherever |x| < 2**51.
_ROUNDER = 6755399441055744.0

# pi / 2: two parts of 33 bits, with exact products for integers below 2**20, and the rest.
_QUARTERS_PER_RADIAN = 0.6366197723675814
_QUARTER_1, _QUARTER_2, _QUARTER_3 = 1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21

_LOG2_E = 1.4426950408889634
_LN2_1, _LN2_2 = 0.693147180559663, 2.8235290563031577e-13


def _rounded(x: float) -> float:
    return (x + _ROUNDER) - _ROUNDER


def sincos(x: float) -> tuple[float, float]:
    """Return sine and cosine, at little more than the cost of one of them.

    Args:
        x: Angle in radians. Results lose accuracy beyond |x| = 10**6, and are meaningless beyond 10**15.

    Returns:
        The sine, exactly odd in `x`, and the cosine, exactly even; NaN for NaN and infinities.
    """
    quarters = _rounded(x * _QUARTERS_PER_RADIAN)
    rough = x - quarters * _QUARTER_1
    second = quarters * _QUARTER_2
    close = rough - second
    rest = quarters * _QUARTER_3 - ((rough - close) - second)
    r = close - rest
    lost = (close - r) - rest
    sine, cosine = _sine(r, lost), _cosine(r, lost)
    turn = quarters - 4.0 * _rounded(quarters * 0.25 - 0.375)  # 0, 1, 2 or 3
    is_odd = (turn == 1.0) | (turn == 3.0)
    first = cosine if is_odd else sine
    other = sine if is_odd else cosine
    return (-first if turn >= 2.0 else first), (-other if (turn == 1.0) | (turn == 2.0) else other)


def _sine(r: float, lost: float) -> float:
    z = r * r
    slope = -2.5051131455447428e-08 + z * 1.591810123167728e-10
    slope = 0.008333333333330946 + z * (-0.0001984126983675497 + z * (2.755731610068312e-06 + z * slope))
    cube = z * r
    return r - ((z * (0.5 * lost - cube * slope) - lost) + cube * 0.16666666666666666)


def _cosine(r: float, lost: float) -> float:
    z = r * r
    bend = -2.7557317270560385e-07 + z * (2.087614602470193e-09 + z * -1.1382614869434128e-11)
    bend = 0.041666666666666664 + z * (-0.0013888888888887395 + z * (2.4801587298763433e-05 + z * bend))
    half = 0.5 * z
    most = 1.0 - half
    return most + (((1.0 - most) - half) + (z * z * bend - r * lost))


def sin(x: float) -> float:
    """Return the sine of `x` radians; see `sincos`."""
    return sincos(x)[0]


def cos(x: float) -> float:
    """Return the cosine of `x` radians; see `sincos`."""
    return sincos(x)[1]


def exp(x: float) -> float:
    """Return e to the power of `x`: infinity above 709.78, 0 below -745.13, NaN for NaN."""
    bounded = 710.0 if x > 710.0 else x  # noqa: FURB136 (CUDA's min and max lose NaN)
    bounded = -746.0 if bounded < -746.0 else bounded  # noqa: FURB136 (CUDA's min and max lose NaN)
    doublings = _rounded(bounded * _LOG2_E)
    size = abs(doublings)
    # In steps: only the last can leave the normal numbers, so only it rounds.
    far = 512.0 if size >= 512.0 else 0.0
    farther = 512.0 if size >= 1024.0 else 0.0
    near = _power_of_two(size - far - farther)
    is_small = doublings < 0.0
    step = 2.0**-512 if is_small else 2.0**512
    value = (1.0 + _grown(bounded, doublings)) * (1.0 / near if is_small else near)
    return value * (step if farther != 0.0 else 1.0) * (step if far != 0.0 else 1.0)


def tanh(x: float) -> float:
    """Return the hyperbolic tangent: exactly odd in `x`, ±1 from |x| = 19.07 on, NaN for NaN."""
    twice = 2.0 * abs(x)
    twice = 44.0 if twice > 44.0 else twice  # noqa: FURB136 (CUDA's min and max lose NaN)
    doublings = _rounded(twice * _LOG2_E)
    power = _power_of_two(doublings)
    grown = power * _grown(twice, doublings) + (power - 1.0)  # e**twice - 1, without cancellation
    return math.copysign(grown / (grown + 2.0), x)


def _grown(x: float, doublings: float) -> float:
    """Return e**(x - doublings * ln 2) - 1; the exponent is at most ln 2 / 2."""
    rough = x - doublings * _LN2_1
    small = doublings * _LN2_2
    r = rough - small
    lost = (rough - r) - small
    bend = 2.7557255374658744e-06 + r * (
        2.755727362486648e-07 + r * (2.510522763655176e-08 + r * 2.0914694560351592e-09)
    )
    bend = 0.0013888888888883744 + r * (0.00019841269874840768 + r * (2.4801587325562125e-05 + r * bend))
    bend = 0.1666666666666667 + r * (0.04166666666666667 + r * (0.008333333333326129 + r * bend))
    return r + (r * r * (0.5 + r * bend) + lost)


def _power_of_two(exponent: float) -> float:
    """Return 2**exponent for an integer from 0 to 511, bit by bit."""
    left_8 = exponent - (256.0 if exponent >= 256.0 else 0.0)
    left_7 = left_8 - (128.0 if left_8 >= 128.0 else 0.0)
    left_6 = left_7 - (64.0 if left_7 >= 64.0 else 0.0)
    left_5 = left_6 - (32.0 if left_6 >= 32.0 else 0.0)
    left_4 = left_5 - (16.0 if left_5 >= 16.0 else 0.0)
    left_3 = left_4 - (8.0 if left_4 >= 8.0 else 0.0)
    left_2 = left_3 - (4.0 if left_3 >= 4.0 else 0.0)
    left_1 = left_2 - (2.0 if left_2 >= 2.0 else 0.0)
    high = (2.0**256 if exponent >= 256.0 else 1.0) * (2.0**128 if left_8 >= 128.0 else 1.0)
    middle = (2.0**64 if left_7 >= 64.0 else 1.0) * (2.0**32 if left_6 >= 32.0 else 1.0)
    low = (65536.0 if left_5 >= 16.0 else 1.0) * (256.0 if left_4 >= 8.0 else 1.0)
    lowest = (16.0 if left_3 >= 4.0 else 1.0) * (4.0 if left_2 >= 2.0 else 1.0) * (1.0 + left_1)
    return high * middle * low * lowest
