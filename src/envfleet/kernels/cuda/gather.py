"""Copy of selected rows of an array on the device."""

from __future__ import annotations

import numpy as np
from numba import cuda

from envfleet.kernels.cuda.availability import cuda_target

BLOCK_THREADS = 128

array_bytes, array_rows = (cuda_target().array_at(np.dtype(kind)) for kind in (np.uint8, np.int64))


@cuda_target().kernel
def gather(target: int, source: int, rows_at: int, count: int, size: int, item: int, row_step: int, step: int) -> None:
    """Copy `count` rows of `size` elements, with one thread per element; steps are in bytes."""
    place = cuda.grid(1)
    if place >= count * size:
        return
    row = array_rows(rows_at, count)[place // size]
    old = array_bytes(source + row * row_step + place % size * step, item)
    new = array_bytes(target + place * item, item)
    for k in range(item):
        new[k] = old[k]
