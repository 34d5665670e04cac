"""Arrays that a batch hands out: the caller's own, and yet seldom allocated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_MAX_SETS = 4
_CAN_COUNT = getattr(sys, "_is_gil_enabled", lambda: True)()


class OutputSet(NamedTuple):
    """One set of results.

    Attributes:
        place: Where compiled code finds `arrays`: a table of addresses, or a piece of device memory.
        arrays: Observations, rewards, terminated, truncated, and infos, each `(num_envs, …)`.
    """

    place: Any
    arrays: Sequence[Any]


class OutputPool:
    """Sets of result arrays, used again once nobody else holds any array of a set.

    A caller owns what it is given: an array is written again only if this pool has the last reference to it, and to
    every view of it. So a training loop, which drops old observations, makes no allocation per step.

    Args:
        make: Makes a set; the pool holds the only references to its `arrays`.
        copy: Otherwise sets take turns, whoever holds them.
        num_sets: How many there are at first.
    """

    def __init__(self, make: Callable[[], OutputSet], *, copy: bool, num_sets: int = 2) -> None:
        self._make, self._copy = make, copy
        self._sets = [make() for _ in range(num_sets)]
        self._unheld = sum(map(sys.getrefcount, self._sets[0].arrays))
        self._turn = 0

    def take(self) -> OutputSet:
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
