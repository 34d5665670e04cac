"""Functions that numba compiles at their first call and caches on disk; without numba they stay plain Python."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

try:
    import numba
except ImportError:
    numba = None
else:
    from envfleet.native.numba_private import on_compile, watch_files

Function = TypeVar("Function", bound=Callable[..., Any])

_FAST = {"reassoc", "contract", "nsz", "arcp"}  # sums in any order, but NaN and infinity are kept
_STAMPS = tuple(file.stat().st_mtime for file in sorted(Path(__file__).parent.glob("*.py")))


def is_available() -> bool:
    """Return whether numba is installed."""
    return numba is not None


class _Note:
    """One note on stderr when functions of this package are compiled, which takes seconds."""

    def __init__(self) -> None:
        self.functions: set[Any] = set()
        self.duration = "once, then cached"

    def report(self, function: Any) -> None:
        """Print the note if the function is one of this package and it was not printed."""
        if function in self.functions:
            self.functions.clear()
            sys.stderr.write(f"envfleet: compiling updates of agents ({self.duration}) ...\n")


_note = _Note()
if numba is not None:
    on_compile(_note.report)


def _options(**more: Any) -> dict[str, Any]:
    return {"fastmath": _FAST, "error_model": "numpy", "no_cfunc_wrapper": True, **more}


def compile_part(function: Function) -> Function:
    """Compile a function for compiled callers only, which compiles faster; Python cannot call it."""
    if numba is None:
        return function
    from envfleet.native.machine_code import Part

    compiled: Function = numba.njit(**_options(pipeline_class=Part, no_cpython_wrapper=True))(function)
    return compiled


def compile_function(function: Function, files: Sequence[Path] = (), *, releases_gil: bool = False) -> Function:
    """Compile a function at its first call.

    Args:
        function: Function of types that numba supports.
        files: Other files with code that it calls, except those of this package.
        releases_gil: True if other threads can run meanwhile. Use it for long functions only: waking a thread takes as
            long as a short function, and waiting for the interpreter afterwards takes longer.
    """
    if numba is None:
        return function
    compiler = functools.partial(numba.njit, **_options(nogil=releases_gil))
    try:
        compiled = compiler(cache=True)(function)
        watch_files(compiled, [*_STAMPS, *(file.stat().st_mtime for file in files)])
    except RuntimeError:  # numba does not find a writable folder
        compiled = compiler()(function)
        _note.duration = "in every process: set NUMBA_CACHE_DIR to a writable folder"
    _note.functions.add(compiled)
    result: Function = compiled
    return result


def compile_exact(function: Function) -> Function:
    """Compile a short function at its first call, with every operation and rounding as it is written."""
    if numba is None:
        return function
    options = {**_options(), "fastmath": False}
    try:
        compiled = numba.njit(cache=True, **options)(function)
        watch_files(compiled, _STAMPS)
    except RuntimeError:  # numba does not find a writable folder
        compiled = numba.njit(**options)(function)
    result: Function = compiled
    return result
