"""Means of the metrics of several updates."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class Means:
    """Running means of named metrics.

    Attributes:
        count: Number of updates.
    """

    def __init__(self) -> None:
        self.count = 0
        self._figures: dict[str, list[Tensor | float]] = {}

    def add(self, metrics: Mapping[str, Tensor | float]) -> None:
        """Add the metrics of one update, not necessarily all of them."""
        self.count += 1
        for name, value in metrics.items():
            self._figures.setdefault(name, []).append(value.detach() if isinstance(value, Tensor) else value)

    def result(self) -> dict[str, float]:
        """Return the mean of every metric."""
        return {name: sum(map(float, values)) / len(values) for name, values in self._figures.items()}
