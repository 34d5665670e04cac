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
