"""Passes of numba's compiler over a user's functions: what they may not assign, and checks of their indices."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import ir
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import AnalysisPass, FunctionPass, register_pass
from numba.core.errors import TypingError
from numba.core.typed_passes import NopythonTypeInference
from numba.core.untyped_passes import IRProcessing
from numba.extending import overload, register_jitable
from numba.np.numpy_support import as_dtype

from envfleet.errors import KernelIndexError
from envfleet.kernels.assignments import describe_typed_loss
from envfleet.kernels.explaining import describe_line
from envfleet.kernels.jitting import FRAMEWORK


@register_pass(mutates_CFG=False, analysis_only=True)
class RefuseLosses(AnalysisPass):
    """Refuses assignments of which a field of a record would lose a part."""

    _name = "envfleet_refuse_losses"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        """Look at one function, whose types are known."""
        for block in state.func_ir.blocks.values():
            for found in block.find_insts(ir.SetAttr):
                record, value = state.typemap[found.target.name], state.typemap[found.value.name]
                loss = describe_typed_loss(types, as_dtype, record, found.attr, value)
                if loss:
                    raise TypingError(loss, found.loc)
        return False


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
    """The statements that check the index of one that reads or writes an element, if it does."""
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
    if isinstance(array, types.UniTuple) and isinstance(index, types.Integer):
        return lambda array, index, place: _check(index, -len(array), len(array), 0, place)
    if isinstance(array, types.NumpyFlatType) and isinstance(index, types.Integer):
        return lambda array, index, place: _check(index, 0, len(array), 0, place)  # numba does not count from its end
    check = _nothing
    if isinstance(array, types.Array):
        parts = index if isinstance(index, types.BaseTuple) else (index,)
        axis, num_axes = 0, sum(not isinstance(part, (types.NoneType, types.EllipsisType)) for part in parts)
        for number, part in enumerate(parts):
            check = _one_more(check, part, number if isinstance(index, types.BaseTuple) else None, axis)
            if isinstance(part, types.EllipsisType):
                axis += array.ndim - num_axes
            elif not isinstance(part, types.NoneType):
                axis += 1
    return lambda array, index, place: check(array, index, place)  # noqa: PLW0108  # numba asks for a new function


def _one_more(check: Any, part: Any, number: int | None, axis: int) -> Any:
    """`check`, then a part of the index, its only one if `number` is `None`, along an axis."""
    if isinstance(part, types.Integer):
        look = _check
    elif isinstance(part, types.Array) and isinstance(part.dtype, types.Integer):
        look = _check_each
    else:
        return check

    @register_jitable
    def check_one_more(array: Any, index: Any, place: str) -> None:
        check(array, index, place)
        size = array.shape[axis]
        look(index if number is None else index[number], -size, size, axis, place)

    return check_one_more


@register_jitable
def _nothing(array: Any, index: Any, place: str) -> None:
    pass


@register_jitable
def _check(index: int, least: int, size: int, axis: int, place: str) -> None:
    if index < least or index >= size:
        raise KernelIndexError(place, index, axis, size)


@register_jitable
def _check_each(indices: Any, least: int, size: int, axis: int, place: str) -> None:
    for index in indices.flat:
        _check(index, least, size, axis, place)


class Strict(CompilerBase):
    """Compiles a user's function."""

    def define_pipelines(self) -> list[Any]:
        """Numba's own pipeline, with a look at assignments."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(RefuseLosses, NopythonTypeInference)
        passes.finalize()
        return [passes]


class Checked(Strict):
    """Compiles a user's function to one that checks its indices."""

    def define_pipelines(self) -> list[Any]:
        """The same, with the checks."""
        (passes,) = super().define_pipelines()
        passes.add_pass_after(CheckIndices, IRProcessing)
        passes.finalize()
        return [passes]
