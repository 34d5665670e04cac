"""Sums and means of floats in NumPy's order of additions, so that results are equal to the bit; on the CPU.

Numba adds one element after the other. NumPy adds blocks of up to 128 neighbours as eight sums next to each other, and
halves longer ranges; elements that are not contiguous are first copied to a buffer of 8192. A pass replaces the
functions in user code by `sum_of` and `mean_of`, so numba itself stays unchanged for other code.
"""

from __future__ import annotations

import types as python_types
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from envfleet.native.machine_code import StatementPass, UserPart
from envfleet.native.numba_private import ir, register_pass

_BLOCK = 128


def sum_of(a: Any, axis: Any = None, dtype: Any = None) -> Any:
    """Replacement of `np.sum` and of the arrays' method."""


def mean_of(a: Any) -> Any:
    """Replacement of `np.mean` and of the arrays' method."""


_REPLACEMENTS = {"sum": (np.sum, sum_of), "mean": (np.mean, mean_of)}


@register_jitable
def _sum_block(a: Any, first: int, count: int) -> Any:
    if count < 8:
        total = -a.dtype.type(0)
        for i in range(first, first + count):
            total += a[i]
        return total
    r0, r1, r2, r3 = a[first], a[first + 1], a[first + 2], a[first + 3]
    r4, r5, r6, r7 = a[first + 4], a[first + 5], a[first + 6], a[first + 7]
    rest = first + count - count % 8
    for i in range(first + 8, rest, 8):
        r0, r1, r2, r3 = r0 + a[i], r1 + a[i + 1], r2 + a[i + 2], r3 + a[i + 3]
        r4, r5, r6, r7 = r4 + a[i + 4], r5 + a[i + 5], r6 + a[i + 6], r7 + a[i + 7]
    total = ((r0 + r1) + (r2 + r3)) + ((r4 + r5) + (r6 + r7))
    for i in range(rest, first + count):
        total += a[i]
    return total


@register_jitable
def sum_flat(a: Any) -> Any:
    """Sum by halving ranges longer than a block; without recursion, which cached code cannot link."""
    left, right, depth = np.empty(64, a.dtype), np.empty(64, np.int64), 0  # sums that wait for their right half
    first, count = 0, a.size
    while True:
        while count > _BLOCK:
            half = count // 2 - count // 2 % 8
            right[depth] = count - half
            depth += 1
            count = half
        total = _sum_block(a, first, count)
        first += count
        while depth > 0 and right[depth - 1] == 0:
            depth -= 1
            total = left[depth] + total
        if depth == 0:
            return a.dtype.type(0) + total
        count = right[depth - 1]
        left[depth - 1], right[depth - 1] = total, 0


_BY_NUMBA = {  # by whether there is an axis, and a dtype
    (False, False): lambda a, axis=None, dtype=None: np.sum(a),
    (False, True): lambda a, axis=None, dtype=None: np.sum(a, dtype=dtype),
    (True, False): lambda a, axis=None, dtype=None: np.sum(a, axis=axis),
    (True, True): lambda a, axis=None, dtype=None: np.sum(a, axis=axis, dtype=dtype),
}
_BY_LAYOUT = {
    "one": lambda a, axis=None, dtype=None: sum_flat(a),
    "C": lambda a, axis=None, dtype=None: sum_flat(a.reshape(a.size)),
    "F": lambda a, axis=None, dtype=None: sum_flat(a.T.reshape(a.size)),
    "A": lambda a, axis=None, dtype=None: sum_flat(a.flatten()),
}


def _has_floats(a: Any) -> bool:
    return isinstance(a, types.Array) and isinstance(a.dtype, types.Float)


@overload(sum_of, prefer_literal=True)
def _sum_of(a, axis=None, dtype=None):  # type: ignore[no-untyped-def]  # numba compares the signatures
    has_axis, has_dtype = (
        not isinstance(kind, (types.Omitted, types.NoneType)) and kind is not None for kind in (axis, dtype)
    )
    if has_axis or has_dtype or not _has_floats(a):
        return _BY_NUMBA[has_axis, has_dtype]
    return _BY_LAYOUT["one" if a.ndim == 1 else a.layout]


@overload(mean_of)
def _mean_of(a):  # type: ignore[no-untyped-def]  # as above
    if not _has_floats(a):
        return lambda a: np.mean(a)  # noqa: PLW0108  # numba compares its arguments
    convert = np.float32 if a.dtype is types.float32 else np.float64
    return lambda a: convert(sum_of(a) / a.size)


@register_pass(mutates_CFG=False, analysis_only=False)
class NumpySums(StatementPass):
    """Let user functions call `sum_of` and `mean_of`."""

    _name = "envfleet_numpy_sums"

    def before(self, statement: Any, scope: Any, state: Any) -> list[Any]:
        """Change a statement that calls a sum or a mean; return the statements that it needs before it."""
        call = getattr(statement, "value", None)
        return _replace(call, state.func_ir, scope) if isinstance(call, ir.Expr) and call.op == "call" else []


def _replace(call: Any, func_ir: Any, scope: Any) -> list[Any]:
    """Change a call of a sum or a mean; return the statements that it needs before it."""
    replacement, arguments = _find_replacement(_definition(func_ir, call.func), func_ir)
    if replacement is None:
        return []
    function = scope.make_temp(call.loc)
    call.func, call.args = function, (*arguments, *call.args)
    return [ir.Assign(ir.Global(replacement.__name__, replacement, call.loc), function, call.loc)]


def _find_replacement(function: Any, func_ir: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the replacement of a function, if there is one, and the array if the function is its method."""
    value = _value(function)
    if isinstance(function, ir.Expr) and function.op == "getattr" and function.attr in _REPLACEMENTS:
        module = _value(_definition(func_ir, function.value))
        if not isinstance(module, python_types.ModuleType):
            return _REPLACEMENTS[function.attr][1], (function.value,)
        value = getattr(module, function.attr, None)
    return next((replacement for original, replacement in _REPLACEMENTS.values() if value is original), None), ()


def _definition(func_ir: Any, variable: Any) -> Any:
    """Return the value of a variable that is assigned once."""
    try:
        return func_ir.get_definition(variable)
    except KeyError:
        return None


def _value(definition: Any) -> Any:
    return definition.value if isinstance(definition, (ir.Global, ir.FreeVar)) else None


class SummingPart(UserPart):
    """Compiler of a user's function to a part."""

    passes = (NumpySums,)
