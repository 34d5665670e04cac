"""Sine and cosine of float32 as the C library of Linux rounds them, in plain arithmetic.

Box2D calls `sinf` and `cosf`, whose results are not always the nearest float32. Those of glibc (2.28 and newer) are
polynomials in float64, so that the same bits can be had uncompiled, compiled, on CUDA and under other C libraries.

The reduction and the coefficients are those of Arm's Optimized Routines (MIT licence), from which glibc has them.
"""

from __future__ import annotations

import math

import numpy as np

_QUARTERS = float.fromhex("0x1.45F306DC9C883p-1")  # 2 / pi
_QUARTER = float.fromhex("0x1.921FB54442D18p0")
_SINE_3 = float.fromhex("-0x1.555545995a603p-3")
_SINE_5 = float.fromhex("0x1.1107605230bc4p-7")
_SINE_7 = float.fromhex("-0x1.994eb3774cf24p-13")
_COSINE_2 = float.fromhex("-0x1.ffffffd0c621cp-2")
_COSINE_4 = float.fromhex("0x1.55553e1068f19p-5")
_COSINE_6 = float.fromhex("-0x1.6c087e89a359dp-10")
_COSINE_8 = float.fromhex("0x1.99343027bf8c3p-16")
_EIGHTH = np.float32(math.pi / 4)
_LARGEST = np.float32(120)


def sincos(angle: np.float32) -> tuple[np.float32, np.float32]:
    """Take sine and cosine; beyond 120 radians the nearest float32."""
    x = np.float64(angle)
    size = abs(angle)
    if size >= _LARGEST:
        return np.float32(math.sin(x)), np.float32(math.cos(x))
    turn = 0
    if size >= _EIGHTH:
        turn = int(math.floor(x * _QUARTERS + 0.5))  # noqa: RUF046  # a float on CUDA
        x -= turn * _QUARTER
    squared = x * x
    cube, fourth = x * squared, squared * squared
    sine = (x + cube * _SINE_3) + (cube * squared) * (_SINE_5 + squared * _SINE_7)
    cosine = (1.0 + squared * _COSINE_2) + fourth * _COSINE_4
    cosine += (fourth * squared) * (_COSINE_6 + squared * _COSINE_8)
    turn &= 3
    first = cosine if turn & 1 else sine
    second = sine if turn & 1 else cosine
    first = -first if turn >= 2 else first
    second = -second if turn in (1, 2) else second
    return np.float32(first), np.float32(second)
