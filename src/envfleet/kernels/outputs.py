"""Arrays that a batch hands out: the caller's own, and yet seldom allocated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from envfleet.kernels.buffers import Buffer

_MAX_SETS = 4
_CAN_COUNT = getattr(sys, "_is_gil_enabled", lambda: True)()


class _Arrays(Protocol):
    @property
    def arrays(self) -> Sequence[Any]: ...


_S = TypeVar("_S", bound=_Arrays)


class OutputSet(NamedTuple):
    """One set of results.

    Attributes:
        table: For the compiled functions, with the addresses of `arrays`.
        arrays: Observations, rewards, terminated, truncated, and infos, each `(num_envs, …)`.
    """

    table: NDArray[np.int64]
    arrays: tuple[NDArray[Any], ...]


def set_maker(
    buffers: Sequence[Buffer],
    shapes: Sequence[tuple[int, ...]],
    num_envs: int,
    table: NDArray[np.int64],
    first_place: int,
) -> Callable[[], OutputSet]:
    """Return what makes sets for an `OutputPool`.

    Args:
        buffers: The arrays of a set.
        shapes: Shape of each for one sub-environment.
        num_envs: Their leading dimension.
        table: All that the compiled functions need but the addresses of the set.
        first_place: Where in the table those addresses begin.
    """
    forms = [((num_envs, *shape), buffer.dtype) for buffer, shape in zip(buffers, shapes, strict=True)]

    def make() -> OutputSet:
        arrays = tuple(np.empty(shape, dtype) for shape, dtype in forms)
        own = table.copy()
        own[first_place : first_place + len(arrays)] = [array.ctypes.data for array in arrays]
        return OutputSet(own, arrays)

    return make


class OutputPool(Generic[_S]):
    """Sets of result arrays, used again once nobody else holds any array of a set.

    A caller owns what it is given: an array is written again only if this pool has the last reference to it, and to
    every view of it. So a training loop, which drops old observations, makes no allocation per step.

    Args:
        make: Makes a set; the pool holds the only references to its `arrays`.
        copy: Otherwise two sets take turns, whoever holds them.
    """

    def __init__(self, make: Callable[[], _S], *, copy: bool) -> None:
        self._make, self._copy = make, copy
        self._sets = [make(), make()]
        self._unheld = sum(map(sys.getrefcount, self._sets[0].arrays))
        self._turn = 0

    def take(self) -> _S:
        """Return a set to write results to."""
        if not self._copy:
            self._turn = 1 - self._turn
            return self._sets[self._turn]
        if _CAN_COUNT:
            for chosen in self._sets:
                if sum(map(sys.getrefcount, chosen.arrays)) == self._unheld:
                    return chosen
        made = self._make()
        self._sets = [made, *self._sets[: _MAX_SETS - 1]]
        return made
