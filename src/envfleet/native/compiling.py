"""Functions compiled by numba at their first call, whose machine code is kept on the disk; plain ones without numba."""

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

_FAST = {"reassoc", "contract", "nsz", "arcp"}  # sums in any order, but NaN and infinity stay what they are
_STAMPS = tuple(file.stat().st_mtime for file in sorted(Path(__file__).parent.glob("*.py")))


def is_available() -> bool:
    """Return whether functions can be compiled: whether numba is installed."""
    return numba is not None


class _Note:
    """Says once that functions of this package are compiled, which takes a while."""

    def __init__(self) -> None:
        self.own: set[Any] = set()
        self.how = "once, then cached"

    def tell(self, function: Any) -> None:
        """Say so if the function is one of them, and nothing was said yet."""
        if function in self.own:
            self.own.clear()
            sys.stderr.write(f"envfleet: compiling updates of agents ({self.how}) ...\n")


_note = _Note()
if numba is not None:
    on_compile(_note.tell)


def _options(**more: Any) -> dict[str, Any]:
    return {"fastmath": _FAST, "error_model": "numpy", "no_cfunc_wrapper": True, **more}


def compile_part(function: Function) -> Function:
    """Compile a function as a part of the compiled ones that call it, which is quicker; Python cannot call it."""
    if numba is None:
        return function
    from envfleet.native.machine_code import Part

    made: Function = numba.njit(**_options(pipeline_class=Part, no_cpython_wrapper=True))(function)
    return made


def compile_function(function: Function, files: Sequence[Path] = (), *, releases_gil: bool = False) -> Function:
    """Compile a function at its first call.

    Args:
        function: Takes and returns what numba knows.
        files: Whose code is in its machine code, besides its own file and this package.
        releases_gil: Whether it leaves the interpreter to other threads: only what takes long should. To wake one of
            them takes as long as a short function, and to wait for the interpreter afterwards takes longer.
    """
    if numba is None:
        return function
    compile_it = functools.partial(numba.njit, **_options(nogil=releases_gil))
    try:
        made = compile_it(cache=True)(function)
        watch_files(made, [*_STAMPS, *(file.stat().st_mtime for file in files)])
    except RuntimeError:  # numba finds no folder that can be written
        made = compile_it()(function)
        _note.how = "in every process: set NUMBA_CACHE_DIR to a folder that can be written"
    _note.own.add(made)
    result: Function = made
    return result
