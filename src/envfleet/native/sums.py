"""Sums and means of floats in the order in which NumPy adds, so that they are equal to the bit; on the CPU.

Numba adds one element after the other. NumPy adds up to 128 neighbours as eight sums side by side, and halves what is
longer; elements that are not contiguous it first copies to a buffer, which holds 8192. A pass lets user code call
`sum_of` and `mean_of` instead of what numba has, so that numba itself stays as it is for other code.
"""

from __future__ import annotations

import types as python_types
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from envfleet.native.jitting import FRAMEWORK
from envfleet.native.machine_code import Part
from envfleet.native.numba_private import FunctionPass, IRProcessing, ir, register_pass

_BLOCK = 128


def sum_of(a: Any, axis: Any = None, dtype: Any = None) -> Any:
    """Stand in for `np.sum`, and for the method of arrays."""


def mean_of(a: Any) -> Any:
    """Stand in for `np.mean`, and for the method of arrays."""


_STAND_INS = {"sum": (np.sum, sum_of), "mean": (np.mean, mean_of)}


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
def _sum_flat(a: Any) -> Any:
    """Halve what is longer than a block, and each half; without recursion, which code from the cache cannot link."""
    left, right, depth = np.empty(64, a.dtype), np.empty(64, np.int64), 0  # what waits for its right half
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


_OF_NUMBA = {  # by whether it has an axis, and a dtype
    (False, False): lambda a, axis=None, dtype=None: np.sum(a),
    (False, True): lambda a, axis=None, dtype=None: np.sum(a, dtype=dtype),
    (True, False): lambda a, axis=None, dtype=None: np.sum(a, axis=axis),
    (True, True): lambda a, axis=None, dtype=None: np.sum(a, axis=axis, dtype=dtype),
}
_OF_LAYOUT = {
    "one": lambda a, axis=None, dtype=None: _sum_flat(a),
    "C": lambda a, axis=None, dtype=None: _sum_flat(a.reshape(a.size)),
    "F": lambda a, axis=None, dtype=None: _sum_flat(a.T.reshape(a.size)),
    "A": lambda a, axis=None, dtype=None: _sum_flat(a.flatten()),
}


def _is_of_floats(a: Any) -> bool:
    return isinstance(a, types.Array) and isinstance(a.dtype, types.Float)


@overload(sum_of, prefer_literal=True)
def _sum_of(a, axis=None, dtype=None):  # type: ignore[no-untyped-def]  # numba compares what is annotated
    has_axis, has_dtype = (
        not isinstance(given, (types.Omitted, types.NoneType)) and given is not None for given in (axis, dtype)
    )
    if has_axis or has_dtype or not _is_of_floats(a):
        return _OF_NUMBA[has_axis, has_dtype]
    return _OF_LAYOUT["one" if a.ndim == 1 else a.layout]


@overload(mean_of)
def _mean_of(a):  # type: ignore[no-untyped-def]  # as above
    if not _is_of_floats(a):
        return lambda a: np.mean(a)  # noqa: PLW0108  # numba compares its arguments
    convert = np.float32 if a.dtype is types.float32 else np.float64
    return lambda a: convert(sum_of(a) / a.size)


@register_pass(mutates_CFG=False, analysis_only=False)
class NumpySums(FunctionPass):
    """Lets one function of a user call `sum_of` and `mean_of`."""

    _name = "envfleet_numpy_sums"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        """Change one function."""
        if state.func_id.modname.startswith(FRAMEWORK):
            return False
        for block in state.func_ir.blocks.values():
            body = []
            for statement in block.body:
                call = getattr(statement, "value", None)
                if isinstance(call, ir.Expr) and call.op == "call":
                    body += _replace(call, state.func_ir, block.scope)
                body.append(statement)
            block.body = body
        return True


def _replace(call: Any, func_ir: Any, scope: Any) -> list[Any]:
    """Change a call of a sum or a mean; returns the statements that it needs before it."""
    stand_in, arguments = _find_stand_in(_definition(func_ir, call.func), func_ir)
    if stand_in is None:
        return []
    function = scope.make_temp(call.loc)
    call.func, call.args = function, (*arguments, *call.args)
    return [ir.Assign(ir.Global(stand_in.__name__, stand_in, call.loc), function, call.loc)]


def _find_stand_in(function: Any, func_ir: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return what is called instead of a function, if anything, and the array if that function is its method."""
    value = _value(function)
    if isinstance(function, ir.Expr) and function.op == "getattr" and function.attr in _STAND_INS:
        module = _value(_definition(func_ir, function.value))
        if not isinstance(module, python_types.ModuleType):
            return _STAND_INS[function.attr][1], (function.value,)
        value = getattr(module, function.attr, None)
    return next((stand_in for original, stand_in in _STAND_INS.values() if value is original), None), ()


def _definition(func_ir: Any, variable: Any) -> Any:
    """Return what a variable is assigned, if it is assigned once."""
    try:
        return func_ir.get_definition(variable)
    except KeyError:
        return None


def _value(definition: Any) -> Any:
    return definition.value if isinstance(definition, (ir.Global, ir.FreeVar)) else None


class UserPart(Part):
    """Compiles a function of a user to a part."""

    def define_pipelines(self) -> list[Any]:
        """Return the same, with NumPy's sums."""
        (passes,) = super().define_pipelines()
        passes.add_pass_after(NumpySums, IRProcessing)
        passes.finalize()
        return [passes]
