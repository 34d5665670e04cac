"""Compile a scalar function and the plain functions it calls, without the kernels' own compiler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numba

for_cpu: Any = numba.njit(error_model="numpy", forceinline=True)


@functools.cache
def rebuilt(function: Callable[..., Any], jit: Any) -> Any:
    assert isinstance(function, FunctionType)
    names = dict(function.__globals__)
    for name in function.__code__.co_names:
        if isinstance(names.get(name), FunctionType):
            names[name] = rebuilt(names[name], jit)
    return jit(FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__))


def jitted(function: Callable[..., Any]) -> Any:
    return rebuilt(function, for_cpu)
