"""Compiler of user functions for the CPU: strict about assignments, and with index checks if requested.

Imported when the first program is compiled, since it imports numba.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numba.extending
from llvmlite import ir as llvm_ir
from numba import types
from numba.extending import intrinsic, models

from envfleet.native import views
from envfleet.native.indices import CheckedPart
from envfleet.native.jitting import FunctionTree
from envfleet.native.machine_code import RULED, DistinctArrays, Part
from envfleet.native.numba_private import TypingError, arrayobj, cgutils
from envfleet.native.rng import RNG_DTYPE
from envfleet.native.rules import make_read_only
from envfleet.native.sums import SummingPart

ENTRY: dict[str, Any] = {"error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True, "pipeline_class": Part}
"""Options of functions that Python calls."""

INNER: dict[str, Any] = {**ENTRY, "no_cpython_wrapper": True}
"""Options of functions that only compiled code calls: they need no wrapper for Python."""

DISTINCT: dict[str, Any] = {**INNER, "pipeline_class": DistinctArrays}
"""Options of functions that only compiled code calls, with arrays that never overlap."""


@numba.njit(**INNER)
def _refuse(source: Any, target: Any) -> None:
    raise ValueError("an array cannot be assigned to a slice of another size")


# Numba's own message contains both shapes, which takes seconds to compile wherever an array is assigned to a slice.
RULED.replacements[arrayobj.raise_with_shape_context] = _refuse

_OUTLINED_FLAGS: dict[str, Any] = {**INNER, "pipeline_class": SummingPart}
FLAGS: dict[str, Any] = {**_OUTLINED_FLAGS, "forceinline": True}
"""Options of user functions: inlined, whatever their size, because a call in a loop keeps the loop scalar."""


def _jit(**flags: Any) -> Callable[[Any], Any]:
    """Return `numba.njit`, changed to compile a function once for all integer arguments.

    By default numba compiles a function again for each constant argument; hockey took a third longer.
    """

    def decorate(function: Any) -> Any:
        dispatcher = numba.njit(**flags)(function)
        get_call_template = dispatcher.get_call_template

        def get_general_template(args: Any, kwargs: Any) -> Any:
            try:
                general = {name: types.unliteral(kind) for name, kind in kwargs.items()}
                return get_call_template(tuple(map(types.unliteral, args)), general)
            except TypingError:  # the function needs the constant, to index a tuple of several types
                return get_call_template(args, kwargs)

        dispatcher.get_call_template = get_general_template
        return dispatcher

    return decorate


make_function = FunctionTree(_jit(**FLAGS), _jit(**_OUTLINED_FLAGS))
"""Makes a user's function, and everything that it calls, compilable."""

# Numba's own check names neither line nor numbers, but covers what `check_index` leaves out.
_CHECKS: dict[str, Any] = {"boundscheck": True, "pipeline_class": CheckedPart}

make_checked_function = FunctionTree(_jit(**FLAGS | _CHECKS), _jit(**_OUTLINED_FLAGS | _CHECKS))
"""Like `make_function`, with checks of every index."""

views.add_clip(numba.extending, types)

GENERATOR = views.make_generator_type(
    numba.extending, types, models.RecordModel, numba.from_dtype(RNG_DTYPE), make_function, jit_options=FLAGS
)
"""Type of `rng`."""

as_generator = views.make_generator_cast(intrinsic, GENERATOR)
new_record = functools.partial(views.make_new_record, intrinsic, cgutils.alloca_once, numba.from_dtype)
array_at = functools.partial(views.make_array_at, intrinsic, types, numba.from_dtype, 0)
row_view = functools.partial(views.make_row_view, intrinsic, types)
read_only = make_read_only(intrinsic, types)


@intrinsic
def call_at(_context: Any, address: Any, arguments: Any) -> Any:
    """Call a program's function at its address with a tuple of arguments; it returns an int."""
    kinds = tuple(map(types.unliteral, arguments.types))

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        convention = context.call_conv
        function = convention.get_function_type(types.int64, kinds)
        values = cgutils.unpack_tuple(builder, args[1])
        values = [context.cast(builder, *each) for each in zip(values, arguments.types, kinds, strict=True)]
        pointer = builder.inttoptr(args[0], function.as_pointer())
        status, result = convention.call_function(builder, pointer, types.int64, kinds, values)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return result

    return types.int64(types.int64, arguments), generate


@intrinsic
def call_c(_context: Any, address: Any, first: Any, second: Any) -> Any:
    """Call a C function of two pointers at its address; all three are ints."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        word = llvm_ir.IntType(64)
        kind = llvm_ir.FunctionType(llvm_ir.VoidType(), [word, word])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def prefetch(_context: Any, array: Any, index: Any) -> Any:
    """Prefetch an element of a flat array that will be written soon."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        element = builder.gep(context.make_array(array)(context, builder, args[0]).data, [args[1]])
        hints = [cgutils.int32_t(hint) for hint in (1, 3, 1)]  # to write, often, data
        kind = llvm_ir.FunctionType(llvm_ir.VoidType(), [cgutils.voidptr_t, *(hint.type for hint in hints)])
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(fetch, [builder.bitcast(element, cgutils.voidptr_t), *hints])
        return context.get_dummy_value()

    return types.void(array, index), generate
