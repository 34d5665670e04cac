"""A sum tree over arrays: every operation takes many entries at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envfleet.agents.compiled import compiled


class SumTree:
    """Numbers whose prefix sums are searched in logarithmic time.

    A binary tree in one array: node 1 is the root, the children of node i are 2 i and 2 i + 1. A parent is always the
    sum of its children as they are, so rounding errors do not add up over time.

    Args:
        capacity: How many numbers; all of them 0 at first.

    Examples:
        >>> tree = SumTree(4)
        >>> tree.set(np.array([0, 2]), np.array([1.0, 3.0]))
        >>> tree.total, tree.find(np.array([0.5, 1.0, 3.9]))
        (4.0, array([0, 2, 2]))
    """

    def __init__(self, capacity: int) -> None:
        self._first_leaf = 1 << max(capacity - 1, 1).bit_length()
        self._nodes = np.zeros(2 * self._first_leaf)

    @property
    def total(self) -> float:
        """Sum of all numbers."""
        return float(self._nodes[1])

    def get(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the numbers at these places; a copy."""
        return self._nodes[indices + self._first_leaf]

    def set(self, indices: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Set the numbers at these places, none below 0; of a place that is named twice the last one counts."""
        _set(self._nodes, indices + self._first_leaf, np.asarray(values, np.float64))

    def find(self, sums: NDArray[np.float64]) -> NDArray[np.int64]:
        """Find, for every sum, the first place at which the numbers up to it add up to more.

        Args:
            sums: From 0 to below `total`.

        Returns:
            Places whose number is above 0, even where `sums` is rounded up to `total`.
        """
        return _find(self._nodes, np.asarray(sums, np.float64)) - self._first_leaf


@compiled
def _set(nodes: NDArray[np.float64], places: NDArray[np.int64], values: NDArray[np.float64]) -> None:
    for number, leaf in enumerate(places):
        place = leaf
        nodes[place] = values[number]
        while place > 1:
            place //= 2
            nodes[place] = nodes[2 * place] + nodes[2 * place + 1]


@compiled
def _find(nodes: NDArray[np.float64], sums: NDArray[np.float64]) -> NDArray[np.int64]:
    found = np.empty(len(sums), np.int64)
    for number in range(len(sums)):
        rest, place = sums[number], 1
        while 2 * place < len(nodes):
            left = nodes[2 * place]
            place *= 2
            if rest >= left and nodes[place + 1] > 0:
                rest, place = rest - left, place + 1
        found[number] = place
    return found
