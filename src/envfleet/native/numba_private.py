"""All private names of numba that this package imports; `pyproject.toml` bounds numba's version.

A test reports which names moved, and checks that no other module imports private names.
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
    """Invalidate the cached code of a function when other files change; numba checks only the function's file.

    Args:
        function: Function with a cache, before its compilation.
        stamps: Modification times of the files.
    """
    cached = function._cache._cache_file  # noqa: SLF001  # this module is the place for it
    # In the version, which is read first: what follows refers to classes that may have moved.
    cached._version = repr((cached._version, cached._source_stamp, *stamps))  # noqa: SLF001  # see above


def on_compile(notify: Callable[[Any], None]) -> None:
    """Call `notify` with each function before numba compiles it."""

    class _Listener(event.Listener):
        def on_start(self, started: Any) -> None:
            notify(started.data["dispatcher"])

        def on_end(self, ended: Any) -> None:
            pass

    event.register("numba:compile", _Listener())
