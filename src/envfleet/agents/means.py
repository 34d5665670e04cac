"""Means of the figures of many updates."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class Means:
    """Means of named figures.

    Attributes:
        count: Updates that were added.
    """

    def __init__(self) -> None:
        self.count = 0
        self._figures: dict[str, list[Tensor | float]] = {}

    def add(self, figures: Mapping[str, Tensor | float]) -> None:
        """Add the figures of one update; not every update has to have every figure."""
        self.count += 1
        for name, value in figures.items():
            self._figures.setdefault(name, []).append(value.detach() if isinstance(value, Tensor) else value)

    def result(self) -> dict[str, float]:
        """Return the mean of every figure."""
        return {name: sum(map(float, values)) / len(values) for name, values in self._figures.items()}
