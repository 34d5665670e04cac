"""Arrays that a batch hands out: the caller's own, and yet seldom allocated."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet.kernels.buffers import Buffer

_MAX_SETS = 4
_CAN_COUNT = getattr(sys, "_is_gil_enabled", lambda: True)()


class OutputSet(NamedTuple):
    """One set of results.

    Attributes:
        table: For the compiled functions, with the addresses of `arrays`.
        arrays: Observations, rewards, terminated, truncated, and infos, each `(num_envs, …)`.
    """

    table: NDArray[np.int64]
    arrays: tuple[NDArray[Any], ...]


class OutputPool:
    """Sets of result arrays, used again once nobody else holds any array of a set.

    A caller owns what it is given: an array is written again only if this pool has the last reference to it, and to
    every view of it. So a training loop, which drops old observations, makes no allocation per step.

    Args:
        buffers: The arrays of a set.
        shapes: Shape of each for one sub-environment.
        num_envs: Their leading dimension.
        table: All that the compiled functions need but the addresses of the set.
        first_place: Where in the table those addresses begin.
        copy: Otherwise two sets take turns, whoever holds them.
    """

    def __init__(
        self,
        buffers: Sequence[Buffer],
        shapes: Sequence[tuple[int, ...]],
        num_envs: int,
        table: NDArray[np.int64],
        first_place: int,
        *,
        copy: bool,
    ) -> None:
        self._forms = [((num_envs, *shape), buffer.dtype) for buffer, shape in zip(buffers, shapes, strict=True)]
        self._table, self._first_place = table, first_place
        self._copy = copy
        self._sets = [self._make(), self._make()]
        self._unheld = _count_references(self._sets[0].arrays)
        self._turn = 0

    def take(self) -> OutputSet:
        """A set to write results to."""
        if not self._copy:
            self._turn = 1 - self._turn
            return self._sets[self._turn]
        if _CAN_COUNT:
            for chosen in self._sets:
                if _count_references(chosen.arrays) == self._unheld:
                    return chosen
        made = self._make()
        self._sets = [made, *self._sets[: _MAX_SETS - 1]]
        return made

    def _make(self) -> OutputSet:
        arrays = tuple(np.empty(shape, dtype) for shape, dtype in self._forms)
        table = self._table.copy()
        table[self._first_place : self._first_place + len(arrays)] = [array.ctypes.data for array in arrays]
        return OutputSet(table, arrays)


def _count_references(arrays: tuple[NDArray[Any], ...]) -> int:
    return sum(map(sys.getrefcount, arrays))
