"""Pool of result arrays: callers own them, but they are reused when no reference is left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_MAX_SETS = 4
_CAN_COUNT = getattr(sys, "_is_gil_enabled", lambda: True)()


class OutputSet(NamedTuple):
    """Set of result arrays.

    Attributes:
        place: Location of the arrays for compiled code: a table of addresses, or a piece of device memory.
        arrays: Observations, rewards, terminated, truncated, and infos, each `(num_envs, …)`.
    """

    place: Any
    arrays: Sequence[Any]


class OutputPool:
    """Sets of result arrays, reused when the pool has the only references to all arrays of a set.

    Callers own the arrays: one is overwritten only when no reference to it, or to a view of it, is left. So a training
    loop, which drops old observations, does not allocate in each step.

    Args:
        make: Function that makes a set, without keeping references to its `arrays`.
        copy: True if callers own the arrays; otherwise sets alternate, even if callers refer to them.
        num_sets: Initial number of sets.
    """

    def __init__(self, make: Callable[[], OutputSet], *, copy: bool, num_sets: int = 2) -> None:
        self._make, self._copy = make, copy
        self._sets = [make() for _ in range(num_sets)]
        self._unused_count = sum(map(sys.getrefcount, self._sets[0].arrays))
        self._turn = 0

    def take(self) -> OutputSet:
        """Return a set for new results."""
        if not self._copy:
            self._turn = (self._turn + 1) % len(self._sets)
            return self._sets[self._turn]
        if _CAN_COUNT:
            for chosen in self._sets:
                if sum(map(sys.getrefcount, chosen.arrays)) == self._unused_count:
                    return chosen
        added = self._make()
        self._sets = [added, *self._sets[: _MAX_SETS - 1]]
        return added
