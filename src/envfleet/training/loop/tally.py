"""What a run sums up on its way: figures of updates, the latest returns, the best evaluation."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.training.loop.examining import Examination

_LATEST = 100  # episodes


class Tally:
    """Sums of a run.

    Attributes:
        transitions: Made so far.
        episodes: Ended so far.
        examination: The latest; `None` before the first.
        examined_at: Transitions at that time.
    """

    def __init__(self) -> None:
        self.transitions = self.episodes = 0
        self._figures: dict[str, list[float]] = {}  # sum and count
        self._returns: collections.deque[float] = collections.deque(maxlen=_LATEST)
        self._best: float | None = None
        self.examination: Examination | None = None
        self.examined_at: int | None = None

    def add_figures(self, figures: Mapping[str, float]) -> None:
        """Add what one call of an agent's `update` returned."""
        for name, value in figures.items():
            sums = self._figures.setdefault(name, [0.0, 0.0])
            sums[0] += value
            sums[1] += 1

    def take_figures(self) -> dict[str, float]:
        """Means of all since the last time."""
        figures = {name: total / count for name, (total, count) in self._figures.items()}
        self._figures = {}
        return figures

    def add_returns(self, returns: NDArray[np.float64]) -> None:
        """Add the returns of episodes that ended."""
        self._returns.extend(returns.tolist())

    @property
    def mean_return(self) -> float:
        """Of the last 100 episodes; NaN before the first."""
        return float(np.mean(self._returns)) if self._returns else float("nan")

    def take_score(self, score: float, transitions: int) -> bool:
        """Take in an evaluation; whether it is the best so far."""
        self.examined_at = transitions
        is_best = self._best is None or score > self._best
        if is_best:
            self._best = score
        return is_best

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes; counts are not part of it."""
        return {
            "figures": {name: list(sums) for name, sums in self._figures.items()},
            "returns": list(self._returns),
            "best": self._best,
            "examined_at": self.examined_at,
            "results": None if self.examination is None else self.examination.results,
            "ratings": {} if self.examination is None else self.examination.ratings,
            "score": None if self.examination is None else self.examination.score,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another was."""
        self._figures = {name: list(sums) for name, sums in state["figures"].items()}
        self._returns = collections.deque(state["returns"], maxlen=_LATEST)
        self._best, self.examined_at = state["best"], state["examined_at"]
        found = (state["results"], state["score"], state.get("ratings", {}))
        self.examination = None if state["score"] is None else Examination(*found)
