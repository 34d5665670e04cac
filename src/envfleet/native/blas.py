"""Number of threads of SciPy's BLAS, which `np.dot` calls in compiled functions."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_NAMES = ("scipy_openblas_{}_num_threads", "openblas_{}_num_threads")  # since SciPy 1.13, and before
_lock = threading.Lock()
_users: list[int] = []  # of one thread: for each, the number of threads that there were before


def is_available() -> bool:
    """Return whether SciPy is installed."""
    return importlib.util.find_spec("scipy") is not None


@functools.cache
def _thread_functions() -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    """Return the functions of OpenBLAS that get and set the number of threads; None for another BLAS."""
    import scipy
    from scipy.linalg import cython_blas

    # On POSIX, a library's symbols include those of the libraries that it is linked with.
    libraries = [cython_blas.__file__, *map(str, Path(scipy.__file__).parents[1].glob("scipy.libs/*openblas*"))]
    for library in libraries:
        handle = ctypes.PyDLL(library)  # holds the GIL: the calls take less than a microsecond
        for name in _NAMES:
            with contextlib.suppress(AttributeError):
                return getattr(handle, name.format("get")), getattr(handle, name.format("set"))
    return None


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit OpenBLAS to one thread.

    With more, the threads of one small product wait for each other: an update takes ten times as long, and longer if
    the other cores are busy. The number is that of the process, so it is restored when the last of several threads
    leaves.
    """
    functions = _thread_functions()
    if functions is None:
        yield
        return
    get_count, set_count = functions
    with _lock:
        _users.append(_users[-1] if _users else get_count())
        set_count(1)
    try:
        yield
    finally:
        with _lock:
            count = _users.pop()
            if not _users:
                set_count(count)
