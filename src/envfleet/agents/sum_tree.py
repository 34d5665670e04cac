"""A sum tree over arrays: every operation takes many entries at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


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
        self._depth = max(capacity - 1, 1).bit_length()
        self._first_leaf = 1 << self._depth
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
        nodes = indices + self._first_leaf
        self._nodes[nodes] = values
        for _ in range(self._depth):
            nodes = np.unique(nodes >> 1)
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, sums: NDArray[np.float64]) -> NDArray[np.int64]:
        """Find, for every sum, the first place at which the numbers up to it add up to more.

        Args:
            sums: From 0 to below `total`.

        Returns:
            Places whose number is above 0, even where `sums` is rounded up to `total`.
        """
        rest, nodes = np.array(sums, np.float64), np.ones(len(sums), np.int64)
        for _ in range(self._depth):
            left, right = self._nodes[2 * nodes], self._nodes[2 * nodes + 1]
            goes_right = (rest >= left) & (right > 0)
            rest -= np.where(goes_right, left, 0.0)
            nodes = 2 * nodes + goes_right
        return nodes - self._first_leaf
