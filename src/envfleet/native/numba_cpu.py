"""What a user's functions become on the CPU: compilable, strict about assignments, and checked if asked to be.

Imported with the first kernel that is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numba.extending
from llvmlite import ir as llvm_ir
from numba import types
from numba.extending import intrinsic, models, overload, register_jitable

from envfleet.errors import KernelIndexError
from envfleet.native.explaining import describe_line
from envfleet.native.jitting import FRAMEWORK, FunctionTree
from envfleet.native.machine_code import RULED, DistinctArrays, Part
from envfleet.native.numba_private import (
    FunctionPass,
    IRProcessing,
    TypingError,
    arrayobj,
    cgutils,
    ir,
    register_pass,
)
from envfleet.native.rng import RNG_DTYPE
from envfleet.native.rules import make_read_only
from envfleet.native.sums import UserPart
from envfleet.native.views import (
    add_clip,
    make_array_at,
    make_generator_cast,
    make_generator_type,
    make_new_record,
    make_row_view,
)


@register_pass(mutates_CFG=False, analysis_only=False)
class CheckIndices(FunctionPass):
    """Puts a call of `check_index` before everything that reads or writes an element."""

    _name = "envfleet_check_indices"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        """Change one function of a user."""
        if state.func_id.modname.startswith(FRAMEWORK):
            return False
        code = state.func_id.code
        for block in state.func_ir.blocks.values():
            body = []
            for statement in block.body:
                body += [*_check_before(statement, block.scope, code), statement]
            block.body = body
        return True


def _check_before(statement: Any, scope: Any, code: Any) -> list[Any]:
    """Return the statements that check the index of one that reads or writes an element, if it does."""
    value = getattr(statement, "value", None)
    if isinstance(value, ir.Expr) and value.op == "getitem":
        array, index = value.value, value.index
    elif isinstance(statement, ir.SetItem):
        array, index = statement.target, statement.index
    else:
        return []
    loc = statement.loc
    function, place, nothing = (scope.make_temp(loc) for _ in range(3))
    text = describe_line(code.co_filename, loc.line, code.co_name)
    return [
        ir.Assign(ir.Global(check_index.__name__, check_index, loc), function, loc),
        ir.Assign(ir.Const(text, loc), place, loc),
        ir.Assign(ir.Expr.call(function, (array, index, place), (), loc), nothing, loc),
    ]


def check_index(array: Any, index: Any, place: str) -> None:
    """Raise `KernelIndexError` if an index lies outside an array; a stand-in for what is compiled."""


@overload(check_index)
def _check_index(array, index, place):  # type: ignore[no-untyped-def]  # numba compares what is annotated
    lines = ["def check(array, index, place):", "    pass"]
    if isinstance(array, (types.UniTuple, types.NumpyFlatType)) and isinstance(index, types.Integer):
        # Numba does not count from the end of a flat array.
        least = "-len(array)" if isinstance(array, types.UniTuple) else "0"
        lines.append(f"    check_one(index, {least}, len(array), 0, place)")
    elif isinstance(array, types.Array):
        parts = index if isinstance(index, types.BaseTuple) else (index,)
        axis, num_axes = 0, sum(not isinstance(part, (types.NoneType, types.EllipsisType)) for part in parts)
        for number, part in enumerate(parts):
            given = f"index[{number}]" if isinstance(index, types.BaseTuple) else "index"
            check = f"-array.shape[{axis}], array.shape[{axis}], {axis}, place)"
            if isinstance(part, types.Integer):
                lines.append(f"    check_one({given}, {check}")
            elif isinstance(part, types.Array) and isinstance(part.dtype, types.Integer):
                lines.append(f"    for one in {given}.flat: check_one(one, {check}")
            if isinstance(part, types.EllipsisType):
                axis += array.ndim - num_axes
            elif not isinstance(part, types.NoneType):
                axis += 1
    names: dict[str, Any] = {"check_one": _check}
    exec("\n".join(lines), names)  # noqa: S102  # our own
    return names["check"]


@register_jitable
def _check(index: int, least: int, size: int, axis: int, place: str) -> None:
    if index < least or index >= size:
        raise KernelIndexError(place, index, axis, size)


class Checked(UserPart):
    """Compiles a user's function to one that checks its indices."""

    def define_pipelines(self) -> list[Any]:
        """Return the same, with the checks."""
        (passes,) = super().define_pipelines()
        passes.add_pass_after(CheckIndices, IRProcessing)
        passes.finalize()
        return [passes]


ENTRY: dict[str, Any] = {"error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True, "pipeline_class": Part}
"""For what Python calls."""

INNER: dict[str, Any] = {**ENTRY, "no_cpython_wrapper": True}
"""For what only compiled code calls: it needs no way in from Python."""

DISTINCT: dict[str, Any] = {**INNER, "pipeline_class": DistinctArrays}
"""For the same, of arrays that never overlap."""


@numba.njit(**INNER)
def _refuse(source: Any, target: Any) -> None:
    raise ValueError("an array cannot be assigned to a slice of another size")


# Numba's own message has both shapes in it, which takes seconds to compile wherever an array is assigned to a slice.
RULED.replacements[arrayobj.raise_with_shape_context] = _refuse

_OUTLINED_FLAGS: dict[str, Any] = {**INNER, "pipeline_class": UserPart}
FLAGS: dict[str, Any] = {**_OUTLINED_FLAGS, "forceinline": True}
"""A call that is left in a loop keeps it scalar, so functions are inlined whatever their size."""


def _jit(**flags: Any) -> Callable[[Any], Any]:
    """`numba.njit`, of which a function is compiled once for all ints it is called with.

    By itself numba compiles a function anew for each constant among its arguments; hockey took a third longer.
    """

    def make(function: Any) -> Any:
        made = numba.njit(**flags)(function)
        specialise = made.get_call_template

        def generalise(args: Any, kwargs: Any) -> Any:
            try:
                return specialise(
                    tuple(map(types.unliteral, args)), {name: types.unliteral(given) for name, given in kwargs.items()}
                )
            except TypingError:  # it needs the constant, to look something up in a tuple of several types
                return specialise(args, kwargs)

        made.get_call_template = generalise
        return made

    return make


make_function = FunctionTree(_jit(**FLAGS), _jit(**_OUTLINED_FLAGS))
"""Makes a user's function, and all that it calls, compilable."""

# Numba's own check names neither line nor numbers, but sees what ours may leave out.
_CHECKS: dict[str, Any] = {"boundscheck": True, "pipeline_class": Checked}

make_checked_function = FunctionTree(_jit(**FLAGS | _CHECKS), _jit(**_OUTLINED_FLAGS | _CHECKS))
"""The same, in code that checks every index."""

add_clip(numba.extending, types)

GENERATOR = make_generator_type(
    numba.extending, types, models.RecordModel, numba.from_dtype(RNG_DTYPE), make_function, jit_options=FLAGS
)
"""Type of `rng`."""

as_generator = make_generator_cast(intrinsic, GENERATOR)
new_record = functools.partial(make_new_record, intrinsic, cgutils.alloca_once, numba.from_dtype)
array_at = functools.partial(make_array_at, intrinsic, types, numba.from_dtype, 0)
row_view = functools.partial(make_row_view, intrinsic, types)
read_only = make_read_only(intrinsic, types)


@intrinsic
def call_at(_context: Any, address: Any, arguments: Any) -> Any:
    """Call a function of a program at its address with a tuple of what it takes; it returns an int."""
    kinds = tuple(map(types.unliteral, arguments.types))

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        convention = context.call_conv
        function = convention.get_function_type(types.int64, kinds)
        values = cgutils.unpack_tuple(builder, args[1])
        values = [context.cast(builder, *one) for one in zip(values, arguments.types, kinds, strict=True)]
        pointer = builder.inttoptr(args[0], function.as_pointer())
        status, result = convention.call_function(builder, pointer, types.int64, kinds, values)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return result

    return types.int64(types.int64, arguments), generate


@intrinsic
def prefetch(_context: Any, array: Any, index: Any) -> Any:
    """Prefetch an element of a flat array that is about to be changed, without waiting for it."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        element = builder.gep(context.make_array(array)(context, builder, args[0]).data, [args[1]])
        hints = [cgutils.int32_t(hint) for hint in (1, 3, 1)]  # to write, often, data
        kind = llvm_ir.FunctionType(llvm_ir.VoidType(), [cgutils.voidptr_t, *(hint.type for hint in hints)])
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(fetch, [builder.bitcast(element, cgutils.voidptr_t), *hints])
        return context.get_dummy_value()

    return types.void(array, index), generate
