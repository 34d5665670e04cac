"""Compile a scalar function and the plain functions it calls, without the kernels' own compiler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numba


@functools.cache
def jitted(function: Callable[..., Any]) -> Any:
    assert isinstance(function, FunctionType)
    names = dict(function.__globals__)
    for name in function.__code__.co_names:
        if isinstance(names.get(name), FunctionType):
            names[name] = jitted(names[name])
    twin = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    return numba.njit(error_model="numpy", forceinline=True)(twin)
