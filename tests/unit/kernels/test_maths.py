"""The kernels' functions against the C library's, and that loops over them are vectorised."""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from tests.unit.kernels.jitted import jitted

from envfleet.kernels import maths

# Units in the last place from the C library, which itself is within one of the truth (two for tanh).
LIMITS = {"sin": 1, "cos": 1, "exp": 1, "tanh": 4}
ODD = ["sin", "tanh"]


def arguments(name: str) -> np.ndarray:
    rng = np.random.default_rng(3)
    tiny_to_one = rng.uniform(-1, 1, 3000) * 10.0 ** rng.uniform(-300, 0, 3000)
    if name in ("sin", "cos"):
        near_quarters = rng.integers(-60_000, 60_000, 3000) * (math.pi / 2) * (1 + rng.uniform(-1e-12, 1e-12, 3000))
        return np.concatenate([rng.uniform(-1e5, 1e5, 3000), rng.uniform(-4, 4, 3000), tiny_to_one, near_quarters])
    wide = rng.uniform(-745, 709, 3000) if name == "exp" else rng.uniform(-25, 25, 3000)
    return np.concatenate([wide, rng.uniform(-1, 1, 3000), tiny_to_one])


def fill_sin(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(np.uint64(x.size)):
        out[i] = sin(x[i])


def fill_cos(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(np.uint64(x.size)):
        out[i] = cos(x[i])


def fill_exp(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(np.uint64(x.size)):
        out[i] = exp(x[i])


def fill_tanh(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(np.uint64(x.size)):
        out[i] = tanh(x[i])


def fill_sincos(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(np.uint64(x.size)):
        sine, cosine = sincos(x[i])
        out[i] = sine + cosine


sin, cos, sincos, exp, tanh = maths.sin, maths.cos, maths.sincos, maths.exp, maths.tanh
FILLS: dict[str, Callable[..., None]] = {
    "sin": fill_sin,
    "cos": fill_cos,
    "exp": fill_exp,
    "tanh": fill_tanh,
    "sincos": fill_sincos,
}


def compiled_values(name: str, x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    jitted(FILLS[name])(x, out)
    return out


@pytest.mark.parametrize("name", LIMITS)
def test_close_to_the_c_library(name: str) -> None:
    x = arguments(name)
    for argument, actual in zip(x.tolist(), compiled_values(name, x).tolist(), strict=True):
        expected = getattr(math, name)(argument)
        assert abs(actual - expected) <= LIMITS[name] * math.ulp(expected), argument


@pytest.mark.parametrize("name", LIMITS)
def test_uncompiled_gives_the_same_bits(name: str) -> None:
    x = arguments(name)[::7].copy()
    plain = np.array([getattr(maths, name)(argument) for argument in x.tolist()])
    assert plain.tobytes() == compiled_values(name, x).tobytes()


@given(st.floats(-1e6, 1e6))
def test_symmetry(x: float) -> None:
    for name in ODD:
        function: Callable[[float], float] = getattr(maths, name)
        assert function(-x) == -function(x)
        assert math.copysign(1.0, function(-x)) == -math.copysign(1.0, function(x))
    assert maths.cos(-x) == maths.cos(x)
    assert maths.sincos(x) == (maths.sin(x), maths.cos(x))


@given(st.floats(-1e6, 1e6))
def test_never_leaves_the_unit_interval(x: float) -> None:
    assert max(abs(value) for value in (*maths.sincos(x), maths.tanh(x))) <= 1.0


@pytest.mark.parametrize("name", ODD)
def test_minus_zero_stays(name: str) -> None:
    values = compiled_values(name, np.array([0.0, -0.0]))
    assert np.signbit(values).tolist() == [False, True]
    assert math.copysign(1.0, getattr(maths, name)(-0.0)) == -1.0


@pytest.mark.parametrize("way", ["uncompiled", "compiled"])
def test_at_the_ends(way: str) -> None:
    def values(name: str, *x: float) -> list[float]:
        if way == "compiled":
            return compiled_values(name, np.array(x)).tolist()
        return [getattr(maths, name)(argument) for argument in x]

    assert np.isnan(values("sin", math.nan, math.inf, -math.inf)).all()
    assert np.isnan(values("cos", math.nan, math.inf, -math.inf)).all()
    assert values("cos", 0.0, -0.0) == [1.0, 1.0]
    assert values("exp", math.inf, 1e300, 709.7827128933841, -math.inf, -1e300, -746.0) == [
        *(math.inf, math.inf, math.inf),
        *(0.0, 0.0, 0.0),
    ]
    assert values("exp", 0.0, 709.782712893384, -745.1) == [1.0, math.exp(709.782712893384), math.exp(-745.1)]
    assert values("tanh", math.inf, -math.inf, 19.1, -1e300) == [1.0, -1.0, 1.0, -1.0]
    assert np.isnan([*values("exp", math.nan), *values("tanh", math.nan)]).all()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="reads x86 assembly")
@pytest.mark.parametrize("name", FILLS)
def test_loops_are_vectorized(name: str) -> None:
    """Products of packed doubles are in the loop's code; but not in a loop over the C library's functions."""
    assert len(packed_products(FILLS[name])) >= 12
    assert not packed_products(fill_with_libm)


def fill_with_libm(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(np.uint64(x.size)):
        out[i] = math.sin(x[i])


def packed_products(fill: Callable[..., None]) -> list[Any]:
    loop = jitted(fill)
    loop(np.ones(8), np.ones(8))
    (assembly,) = loop.inspect_asm().values()
    return re.findall(r"\bv?mulpd\b", assembly)
