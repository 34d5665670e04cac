"""Means of figures over many updates, without waiting for a device at each of them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class Means:
    """Sums named figures and tells their means.

    Attributes:
        count: Updates that were added.
    """

    def __init__(self) -> None:
        self.count = 0
        self._totals: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, figures: Mapping[str, Tensor]) -> None:
        """Add the figures of one update; not every update has to have every figure."""
        self.count += 1
        for name, value in figures.items():
            before = self._totals.get(name)
            self._totals[name] = value.detach() if before is None else before + value.detach()
            self._counts[name] = self._counts.get(name, 0) + 1

    def result(self) -> dict[str, float]:
        """The mean of every figure."""
        return {name: float(total) / self._counts[name] for name, total in self._totals.items()}
