"""What a run sums up on its way: counts, figures of updates, the latest returns, the best evaluation."""

from __future__ import annotations

import collections
from collections.abc import Mapping

import numpy as np

from envfleet.agents.descent import Means
from envfleet.training.events import Examination, Results

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
        self._figures = Means()
        self._latest: collections.deque[tuple[float, float, int, int]] = collections.deque(maxlen=_LATEST)
        self._has_games = False
        self._best: float | None = None
        self.examination: Examination | None = None
        self.examined_at: int | None = None

    def add_figures(self, figures: Mapping[str, float]) -> None:
        """Add what one call of an agent's `update` returned."""
        self._figures.add(figures)

    def take_figures(self) -> dict[str, float]:
        """Means of all since the last time."""
        figures, self._figures = self._figures.result(), Means()
        return figures

    def add_episodes(self, results: Results) -> None:
        """Add episodes that ended."""
        self.episodes += len(results)
        self._has_games = any(results.opponents)
        columns = results.returns, results.shaped_returns, results.lengths, results.winners
        self._latest.extend(zip(*(column.tolist() for column in columns), strict=True))

    def latest(self) -> dict[str, float]:
        """Return means over the last 100 episodes; see `events.Progress`."""
        if not self._latest:
            return {}
        *columns, winners = np.array(self._latest).T
        means = {
            name: float(column.mean())
            for name, column in zip(("return", "shaped_return", "length"), columns, strict=True)
        }
        rates = {"win_rate": float((winners > 0).mean()), "loss_rate": float((winners < 0).mean())}
        return means | rates if self._has_games else means

    def take_examination(self, found: Examination) -> bool:
        """Take in an evaluation; whether it is the best so far."""
        self.examination, self.examined_at = found, self.transitions
        is_best = self._best is None or found.score > self._best
        if is_best:
            self._best = found.score
        return is_best
