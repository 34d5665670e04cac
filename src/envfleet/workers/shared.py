"""Data that all sub-environments of a fleet read: named arrays in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.workers.arrays import BlockLayout
from envfleet.workers.memory import NamelessFile

Form = dict[str, tuple[tuple[int, ...], str]]
"""Shape and dtype of each array."""


def read_shared(data: Mapping[str, Any] | None) -> dict[str, NDArray[Any]]:
    """Return read-only views of the arrays in `data`, without copying arrays.

    Raises:
        InvalidArgument: A value is not an array of numbers.
    """
    arrays = {}
    for name, value in (data or {}).items():
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise InvalidArgument(
                f"shared[{name!r}] is {type(value).__name__}, expected an array of numbers: pass large arrays in "
                "`shared` and everything else as an argument of the environment"
            )
        arrays[name] = _read_only(array)
    return arrays


def form_of(arrays: Mapping[str, NDArray[Any]]) -> Form:
    """Return shapes and dtypes, with which another process can map the arrays."""
    return {name: (array.shape, array.dtype.str) for name, array in arrays.items()}


def put_shared(arrays: Mapping[str, NDArray[Any]]) -> NamelessFile:
    """Copy arrays into shared memory.

    Raises:
        OutOfMemory: There is too little memory.
    """
    layout, file = BlockLayout(form_of(arrays)), NamelessFile()
    try:
        for name, view in layout.views(file.allocate(layout.size_bytes)).items():
            view[...] = arrays[name]
    except BaseException:
        file.close()
        raise
    return file


def map_shared(fd: int, form: Form) -> dict[str, NDArray[Any]]:
    """Map the arrays that `put_shared` copied, in a worker, which then owns the descriptor."""
    layout, file = BlockLayout(form), NamelessFile(fd)
    views = layout.views(file.map(layout.size_bytes))
    file.close()
    return {name: _read_only(view) for name, view in views.items()}


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view
