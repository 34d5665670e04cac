"""The private parts of numba that this package uses, all of them; `pyproject.toml` bounds its version.

A test says which moved, and that no other module imports any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba._dynfunc import make_function
from numba.core import cgutils, event, ir
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.environment import Environment, lookup_environment
from numba.core.errors import TypingError
from numba.core.registry import cpu_target
from numba.core.untyped_passes import IRProcessing
from numba.np import arrayobj
from numba.np.numpy_support import as_dtype


def watch_files(function: Any, stamps: Sequence[float]) -> None:
    """Have the kept code of a function count as old once other files change: numba looks only at the function's own.

    Args:
        function: One with a cache, not compiled yet.
        stamps: Times of the files' last changes.
    """
    cached = function._cache._cache_file  # noqa: SLF001  # private parts are what this module is for
    # By the version, which is read first: what follows names classes that may be gone.
    cached._version = repr((cached._version, cached._source_stamp, *stamps))  # noqa: SLF001  # likewise


def on_compile(tell: Callable[[Any], None]) -> None:
    """Call a function with each function that is about to be compiled."""

    class _Listener(event.Listener):
        def on_start(self, started: Any) -> None:
            tell(started.data["dispatcher"])

        def on_end(self, ended: Any) -> None:
            pass

    event.register("numba:compile", _Listener())


def find_code(function: Any, kinds: tuple[Any, ...]) -> tuple[int, Any]:
    """Return the address of a function's machine code for arguments of these types, and the type of its result."""
    found = function.overloads[kinds]
    return found.library.get_pointer_to_function(found.fndesc.llvm_func_name), found.signature.return_type


def keep(context: Any, builder: Any, kind: Any, value: Any) -> None:
    """Generate code that keeps the arrays in a value until `release`."""
    context.nrt.incref(builder, kind, value)


def release(context: Any, builder: Any, kind: Any, value: Any) -> None:
    """Generate code that releases the arrays in a value."""
    context.nrt.decref(builder, kind, value)


def call(context: Any, builder: Any, pointer: Any, kinds: tuple[Any, ...], values: Any, result: Any) -> tuple[Any, Any]:
    """Generate a call of machine code.

    Args:
        context: Of the target.
        builder: Of the code.
        pointer: Address of what is called.
        kinds: Types of its arguments.
        values: The arguments.
        result: Type of its result.

    Returns:
        Whether it failed, and its result.
    """
    convention = context.call_conv
    function = builder.inttoptr(pointer, convention.get_function_type(result, kinds).as_pointer())
    status, returned = convention.call_function(builder, function, result, kinds, values)
    return status.is_error, returned
