"""What numba needs to compile kernels for the CPU; imported with the first kernel that is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.errors import TypingError
from numba.core.registry import cpu_target
from numba.core.typing.arraydecl import RecordAttribute
from numba.extending import intrinsic, overload, overload_method

from envfleet.kernels import rng as rng_functions
from envfleet.kernels.jitting import FunctionTree
from envfleet.kernels.numba_passes import Checked, Strict
from envfleet.kernels.rng import RNG_DTYPE
from envfleet.kernels.views import make_row_view, scalar_clip

INNER: dict[str, Any] = {
    "error_model": "numpy",
    "nogil": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
"""For what only compiled code calls: it needs no way in from Python."""

FLAGS: dict[str, Any] = {**INNER, "forceinline": True}
"""A call that is left in a loop keeps it scalar, so functions are inlined whatever their size."""


class DistinctArrays(CompilerBase):
    """Compiles a function whose array arguments never overlap, so that LLVM may vectorise without asking."""

    def define_pipelines(self) -> list[Any]:
        """Numba's own pipeline."""
        self.state.flags.noalias = True
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]


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
                    tuple(map(types.unliteral, args)),
                    {name: types.unliteral(given) for name, given in kwargs.items()},
                )
            except TypingError:  # it needs the constant, to look something up in a tuple of several types
                return specialise(args, kwargs)

        made.get_call_template = generalise
        return made

    return make


make_function = FunctionTree(_jit(**FLAGS, pipeline_class=Strict), _jit(**INNER, pipeline_class=Strict))
"""Makes a user's function, and all that it calls, compilable."""

# Numba's own check names neither line nor numbers, but sees what ours may leave out.
_CHECKS: dict[str, Any] = {"boundscheck": True, "pipeline_class": Checked}

make_checked_function = FunctionTree(_jit(**FLAGS, **_CHECKS), _jit(**INNER, **_CHECKS))
"""The same, in code that checks every index."""

_RNG_TYPE = numba.from_dtype(RNG_DTYPE)


def _attach(name: str, function: Callable[..., Any]) -> None:
    """Make `rng.name(...)` call `function(rng, ...)`."""
    compiled = make_function(function)
    of_int = make_function(rng_functions.INT_METHODS.get(name, function))

    def choose(rng: Any, *args: Any, **kwargs: Any) -> Any:
        is_int = isinstance(next(iter((*args, *kwargs.values())), None), types.Integer)
        return None if rng != _RNG_TYPE else of_int.py_func if is_int else compiled.py_func

    choose.__signature__ = inspect.signature(compiled.py_func)  # type: ignore[attr-defined]  # numba compares it
    overload_method(types.Record, name, jit_options=FLAGS)(choose)


for _name, _function in rng_functions.METHODS.items():
    _attach(_name, _function)


@overload(np.clip)
def _clip(a, a_min, a_max):  # type: ignore[no-untyped-def]  # numba compares what is annotated
    """`np.clip` of a number, which numba has of arrays only."""
    return scalar_clip(types, a, a_min, a_max)


def _put_methods_first() -> None:
    """Let numba look for a record's methods before its fields: it takes the first answer, and a field is an error."""
    context = cpu_target.typing_context
    context.refresh()  # numba's own come now, or after ours, or came before them
    context._attributes[types.Record].sort(key=lambda found: isinstance(found, RecordAttribute))  # noqa: SLF001


_put_methods_first()


def new_record(dtype: np.dtype[Any]) -> Any:
    """An intrinsic without arguments: a record in the stack frame, for LLVM to turn into registers."""
    record = numba.from_dtype(dtype if dtype.names else np.dtype([("unused", np.uint8)]))

    @intrinsic
    def allocate(_context: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
            return cgutils.alloca_once(builder, context.get_data_type(record))

        return record(), generate

    return allocate


def row_view(shape: tuple[int, ...]) -> Any:
    """An intrinsic `(flat, index)`: see `make_row_view`."""
    return make_row_view(intrinsic, types, shape)


@intrinsic
def pointer_at(_context: Any, address: Any) -> Any:
    """The memory at an address given as an int, for `numba.carray`."""

    def generate(_c: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate
