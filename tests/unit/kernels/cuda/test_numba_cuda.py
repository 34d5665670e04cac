"""Every draw and every function of the kernels becomes PTX; that takes CUDA's compiler, no device."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from typing import Any

import numba
import pytest
from tests.unit.kernels.jitted import rebuilt

from envfleet.kernels import maths
from envfleet.native import rng as kernel_rng

HOPPER = (9, 0)


@pytest.fixture
def ptx(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    if getattr(numba.config, "ENABLE_CUDASIM", 0):
        pytest.skip("the simulator compiles nothing")
    cuda: Any = importlib.import_module("numba.cuda")
    dispatcher = importlib.import_module("numba.cuda.dispatcher")
    from_dtype = importlib.import_module("numba.cuda.np.numpy_support").from_dtype

    # Typing a call asks the present device for its compute capability.
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: types.SimpleNamespace(compute_capability=HOPPER))
    record = from_dtype(kernel_rng.RNG_DTYPE)
    for_device = cuda.jit(device=True)

    def compiled(function: Callable[..., Any], *arguments: Any) -> str:
        text, _ = cuda.compile_ptx(rebuilt(function, for_device).py_func, (record, *arguments), device=True, cc=HOPPER)
        return str(text)

    return compiled


def everything_drawn(rng: Any) -> float:
    seed(rng, next_uint64(rng))
    integer = integers(rng, 0, 7) + integers(rng, 9) + integers(rng, -5, 1 << 40)
    return random(rng) + uniform(rng, -1.0, 1.0) + normal(rng, 0.0, 2.0) + integer


def every_function(rng: Any) -> float:
    sine, cosine = sincos(random(rng))
    return sine + cosine + exp(sin(cosine)) + tanh(cos(sine))


next_uint64, seed, random, uniform, integers, normal = (
    getattr(kernel_rng, name) for name in ("next_uint64", "seed", "random", "uniform", "integers", "normal")
)
sin, cos, sincos, exp, tanh = maths.sin, maths.cos, maths.sincos, maths.exp, maths.tanh


@pytest.mark.parametrize("function", [everything_drawn, every_function])
def test_becomes_ptx(ptx: Callable[..., str], function: Callable[..., Any]) -> None:
    text = ptx(function)
    assert f".target sm_{HOPPER[0]}{HOPPER[1]}" in text
    assert "mul.lo.s64" in text  # PCG's step
