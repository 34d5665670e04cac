"""Index checks in compiled code, which name the user's line, the index and the size.

Numba's own `boundscheck` names neither. A pass inserts a call of `check_index` before every read and write of an
element; numba compiles the check for the types of array and index.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import overload, register_jitable

from envfleet.errors import KernelIndexError
from envfleet.native.explaining import describe_line
from envfleet.native.generated_code import fill
from envfleet.native.machine_code import StatementPass, UserPart
from envfleet.native.numba_private import ir, register_pass
from envfleet.native.sums import NumpySums


def check_index(array: Any, index: Any, place: str) -> None:
    """Raise `KernelIndexError` if an index lies outside an array; compiled code has `_check_index` instead."""


@register_pass(mutates_CFG=False, analysis_only=False)
class CheckIndices(StatementPass):
    """Insert a call of `check_index` before every read and write of an element."""

    _name = "envfleet_check_indices"

    def before(self, statement: Any, scope: Any, state: Any) -> list[Any]:
        """Return the statements that check a statement's index, if it has one."""
        value = getattr(statement, "value", None)
        if isinstance(value, ir.Expr) and value.op == "getitem":
            array, index = value.value, value.index
        elif isinstance(statement, ir.SetItem):
            array, index = statement.target, statement.index
        else:
            return []
        loc, code = statement.loc, state.func_id.code
        function, place, result = (scope.make_temp(loc) for _ in range(3))
        text = describe_line(code.co_filename, loc.line, code.co_name)
        return [
            ir.Assign(ir.Global(check_index.__name__, check_index, loc), function, loc),
            ir.Assign(ir.Const(text, loc), place, loc),
            ir.Assign(ir.Expr.call(function, (array, index, place), (), loc), result, loc),
        ]


_CHECK = """
def check(array, index, place):
    pass
    $checks
"""

_CHECK_EACH = """
for each in $index.flat:
    check_one(each, $least, $size, $axis, place)
"""


@overload(check_index)
def _check_index(array, index, place):  # type: ignore[no-untyped-def]  # numba compares the signatures
    names: dict[str, Any] = {"check_one": _check_one}
    exec("\n".join(fill(_CHECK, checks=_checks(array, index))), names)  # noqa: S102  # generated above
    return names["check"]


def _checks(array: Any, index: Any) -> list[str]:
    """Return the checks of each part of an index, for the types of array and index."""
    if isinstance(array, (types.UniTuple, types.NumpyFlatType)) and isinstance(index, types.Integer):
        least = (
            "-len(array)" if isinstance(array, types.UniTuple) else "0"
        )  # numba's `flat` does not count from the end
        return [f"check_one(index, {least}, len(array), 0, place)"]
    if not isinstance(array, types.Array):
        return []
    lines: list[str] = []
    parts = index if isinstance(index, types.BaseTuple) else (index,)
    axis, num_axes = 0, sum(not isinstance(part, (types.NoneType, types.EllipsisType)) for part in parts)
    for number, part in enumerate(parts):
        name = f"index[{number}]" if isinstance(index, types.BaseTuple) else "index"
        least, size = f"-array.shape[{axis}]", f"array.shape[{axis}]"
        if isinstance(part, types.Integer):
            lines.append(f"check_one({name}, {least}, {size}, {axis}, place)")
        elif isinstance(part, types.Array) and isinstance(part.dtype, types.Integer):
            lines += fill(_CHECK_EACH, index=name, least=least, size=size, axis=axis)
        if isinstance(part, types.EllipsisType):
            axis += array.ndim - num_axes
        elif not isinstance(part, types.NoneType):
            axis += 1
    return lines


@register_jitable
def _check_one(index: int, least: int, size: int, axis: int, place: str) -> None:
    if index < least or index >= size:
        raise KernelIndexError(place, index, axis, size)


class CheckedPart(UserPart):
    """Compiler of a user's function to a part that checks its indices."""

    passes = (NumpySums, CheckIndices)
