"""Which numbers a discrete space holds, checked for a whole batch at once."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

ArraySpace: TypeAlias = spaces.Box | spaces.Discrete[Any] | spaces.MultiDiscrete | spaces.MultiBinary
"""The spaces whose values are arrays of one shape and dtype."""


class Range:
    """For each number of a value, how many integers it may be, counted from which.

    Args:
        low: The least ones, of the shape of one value, or broadcast to it.
        count: How many there are of each, likewise.
        dtype: The values' own, of integers.
    """

    def __init__(self, low: Any, count: Any, dtype: np.dtype[Any]) -> None:
        self._low = np.asarray(low, dtype)
        self._unsigned = np.dtype(dtype.str.replace("i", "u"))
        self._count = np.asarray(count, self._unsigned)
        self._is_from_zero = not self._low.any()

    def _inside(self, array: NDArray[Any]) -> NDArray[np.bool_]:
        # One comparison for both ends: what lies below, counted from the least, is very large without a sign.
        distance = array if self._is_from_zero else array - self._low
        inside: NDArray[np.bool_] = distance.view(self._unsigned) < self._count
        return inside

    def holds(self, array: NDArray[Any]) -> bool:
        """Whether all of `array`, of the range's own dtype and any leading dimensions, is in range."""
        return bool(np.logical_and.reduce(self._inside(array), axis=None))

    def rows_outside(self, array: NDArray[Any]) -> list[int]:
        """Rows of `array`, `(n, *shape)`, that are not in range."""
        rows: list[int] = np.flatnonzero(~self._inside(array).reshape(len(array), -1).all(axis=1)).tolist()
        return rows

    def __str__(self) -> str:
        return f"{self._low} to {self._low + (self._count - 1).astype(self._low.dtype)}"


def range_of(space: ArraySpace) -> Range | None:
    """The range of a discrete space; `None` for a `Box`, whose bounds environments use to clip."""
    if isinstance(space, spaces.Discrete):
        return Range(space.start, space.n, np.dtype(space.dtype))
    if isinstance(space, spaces.MultiDiscrete):
        return Range(space.start, space.nvec, np.dtype(space.dtype))
    if isinstance(space, spaces.MultiBinary):
        return Range(0, 2, np.dtype(space.dtype))
    return None
