"""Position of a run in its curriculum, and its counters: metrics of updates, latest returns, evaluations."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence

import numpy as np

from envfleet.agents.means import Means
from envfleet.evaluation.intervals import wilson
from envfleet.training.events import EvaluationSummary, Results
from envfleet.training.phases import Phase

_LATEST = 100  # episodes


class CurriculumProgress:
    """Counters of a run and its position in the curriculum.

    Counts are over all sub-environments: a phase of 1,000 episodes is equally long with 1 and with 64 of them.

    Args:
        phases: Phases in order, at least one.

    Attributes:
        phases: Phases of the curriculum.
        index: Index of the current phase, from 0; the number of phases after the end.
        transitions: Transitions so far.
        episodes: Finished episodes so far.
        figures: Metrics returned by the agent's `update` since the last report.
        evaluation: Latest evaluation; `None` before the first.
        evaluated_at: Transitions at the latest evaluation.
        is_evaluation_due: True if an evaluation was started but not finished.
    """

    is_evaluation_due = False
    _extended_to: int | None = None  # transitions at which an extended last phase ends

    def __init__(self, phases: Sequence[Phase]) -> None:
        self.phases = tuple(phases)
        self.index = self.transitions = self.episodes = 0
        self.figures = Means()
        self._latest: collections.deque[tuple[float, float, int, int]] = collections.deque(maxlen=_LATEST)
        self._has_games = False
        self._best = -math.inf
        self.evaluation: EvaluationSummary | None = None
        self.evaluated_at: int | None = None
        self._begin_phase()

    def _begin_phase(self) -> None:
        self._began = self.transitions, self.episodes
        promotion = self.phase.promote_at
        self._winners: collections.deque[int] = collections.deque(maxlen=promotion.games if promotion else 0)

    # ------------------------------------------------------------------ the curriculum

    @property
    def is_finished(self) -> bool:
        """True once all phases are finished."""
        return self.index == len(self.phases)

    @property
    def phase_index(self) -> int:
        """Index of the current phase; of the last one after the end."""
        return min(self.index, len(self.phases) - 1)

    @property
    def phase(self) -> Phase:
        """Current phase; the last one after the end."""
        return self.phases[self.phase_index]

    @property
    def is_phase_over(self) -> bool:
        """True once the phase has reached its length or its win rate, so that `advance` follows."""
        return not self.is_finished and (self._phase_share >= 1.0 or self._is_promoted())

    @property
    def _phase_share(self) -> float:
        """Finished share of the phase, from 0 to 1."""
        phase = self.phase
        if self._extended_to is not None:
            return min(self.transitions / self._extended_to, 1.0)
        transitions, episodes = self.transitions - self._began[0], self.episodes - self._began[1]
        if phase.episodes is not None:
            return min(episodes / phase.episodes, 1.0)
        return min(transitions / (phase.transitions or 1), 1.0)

    @property
    def share(self) -> float:
        """Finished share of the curriculum, from 0 to 1; all phases count equally."""
        return 1.0 if self.is_finished else (self.index + self._phase_share) / len(self.phases)

    def advance(self) -> None:
        """Continue with the next phase, or finish; counts so far belong to the previous phase."""
        self.index += 1
        self._begin_phase()

    def extend(self, transitions: int) -> None:
        """Continue the last phase of a finished curriculum until the whole run has `transitions`."""
        self.index, self._extended_to = len(self.phases) - 1, transitions

    def _is_promoted(self) -> bool:
        promotion = self.phase.promote_at
        if self._extended_to is not None or promotion is None or len(self._winners) < promotion.games:
            return False
        wins = sum(winner > 0 for winner in self._winners)
        return wilson(wins, promotion.games)[0] > promotion.win_rate

    # ------------------------------------------------------------------ counts

    def count(self, transitions: int, results: Results | None = None) -> None:
        """Add a round: its transitions and the episodes that ended in it."""
        self.transitions += transitions
        if results is not None:
            self.episodes += len(results)
            self._has_games = any(results.opponents)
            self._winners.extend(results.winners.tolist())
            columns = results.returns, results.shaped_returns, results.lengths, results.winners
            self._latest.extend(zip(*(column.tolist() for column in columns), strict=True))

    @property
    def has_latest(self) -> bool:
        """True once 100 episodes have ended, so that `latest` covers 100."""
        return len(self._latest) == _LATEST

    def latest(self) -> dict[str, float]:
        """Return means over the last 100 episodes; see `events.Progress`."""
        if not self._latest:
            return {}
        *columns, winners = np.array(self._latest).T
        means = dict(zip(("return", "shaped_return", "length"), np.mean(columns, axis=1).tolist(), strict=True))
        rates = {"win_rate": float((winners > 0).mean()), "loss_rate": float((winners < 0).mean())}
        return means | rates if self._has_games else means

    def add_evaluation(self, summary: EvaluationSummary) -> bool:
        """Add an evaluation; return whether it is the best so far."""
        self.evaluation, self.evaluated_at, self.is_evaluation_due = summary, self.transitions, False
        is_best = summary.score > self._best
        self._best = max(self._best, summary.score)
        return is_best
