"""Arrays that a batch hands out: the caller's own, and yet seldom allocated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

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


class OutputPool(Generic[_S]):
    """Sets of result arrays, used again once nobody else holds any array of a set.

    A caller owns what it is given: an array is written again only if this pool has the last reference to it, and to
    every view of it. So a training loop, which drops old observations, makes no allocation per step.

    Args:
        make: Makes a set; the pool holds the only references to its `arrays`.
        copy: Otherwise sets take turns, whoever holds them.
        num_sets: How many there are at first.
    """

    def __init__(self, make: Callable[[], _S], *, copy: bool, num_sets: int = 2) -> None:
        self._make, self._copy = make, copy
        self._sets = [make() for _ in range(num_sets)]
        self._unheld = sum(map(sys.getrefcount, self._sets[0].arrays))
        self._turn = 0

    def take(self) -> _S:
        """Return a set to write results to."""
        if not self._copy:
            self._turn = (self._turn + 1) % len(self._sets)
            return self._sets[self._turn]
        if _CAN_COUNT:
            for chosen in self._sets:
                if sum(map(sys.getrefcount, chosen.arrays)) == self._unheld:
                    return chosen
        made = self._make()
        self._sets = [made, *self._sets[: _MAX_SETS - 1]]
        return made
