"""Where a run is in its curriculum, and what it has counted: figures of updates, latest returns, evaluations."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence

import numpy as np

from envfleet.agents.means import Means
from envfleet.training.evaluation import wilson
from envfleet.training.events import Examination, Results
from envfleet.training.phases import Phase

_LATEST = 100  # episodes


class Tally:
    """Counts what a run has done, and says where in its curriculum that is.

    Counts are over all sub-environments: a phase of 1,000 episodes has as many with one of them as with 64.

    Args:
        phases: In order, at least one.

    Attributes:
        phases: These.
        index: Of the phase that is played, from 0; the number of phases once all are done.
        transitions: Made so far.
        episodes: Ended so far.
        figures: What calls of an agent's `update` returned, since they were last told.
        examination: The latest; `None` before the first.
        examined_at: Transitions at that time.
        is_examination_due: Whether one was begun and not finished.
    """

    is_examination_due = False
    _extended_to: int | None = None  # transitions until which the last phase goes on after its own end

    def __init__(self, phases: Sequence[Phase]) -> None:
        self.phases = tuple(phases)
        self.index = self.transitions = self.episodes = 0
        self.figures = Means()
        self._latest: collections.deque[tuple[float, float, int, int]] = collections.deque(maxlen=_LATEST)
        self._has_games = False
        self._best = -math.inf
        self.examination: Examination | None = None
        self.examined_at: int | None = None
        self._begin_phase()

    def _begin_phase(self) -> None:
        self._began = self.transitions, self.episodes
        promotion = self.phase.promote_at
        self._winners: collections.deque[int] = collections.deque(maxlen=promotion.games if promotion else 0)

    # ------------------------------------------------------------------ the curriculum

    @property
    def is_finished(self) -> bool:
        """Return whether all phases are done."""
        return self.index == len(self.phases)

    @property
    def phase_index(self) -> int:
        """Return the place of the phase that is played, or of the last one once all are done."""
        return min(self.index, len(self.phases) - 1)

    @property
    def phase(self) -> Phase:
        """Return that phase."""
        return self.phases[self.phase_index]

    @property
    def is_phase_over(self) -> bool:
        """Return whether `advance` is due: the phase has its length, or the learner wins as often as it asks for."""
        return not self.is_finished and (self._phase_share >= 1.0 or self._is_promoted())

    @property
    def _phase_share(self) -> float:
        """How much of the phase is done, from 0 to 1."""
        phase = self.phase
        if self._extended_to is not None:
            return min(self.transitions / self._extended_to, 1.0)
        transitions, episodes = self.transitions - self._began[0], self.episodes - self._began[1]
        if phase.episodes is not None:
            return min(episodes / phase.episodes, 1.0)
        return min(transitions / (phase.transitions or 1), 1.0)

    @property
    def share(self) -> float:
        """Return how much of the curriculum is done, from 0 to 1, all phases alike."""
        return 1.0 if self.is_finished else (self.index + self._phase_share) / len(self.phases)

    def advance(self) -> None:
        """Go on to the next phase, or to the end; what has been counted belongs to the last one."""
        self.index += 1
        self._begin_phase()

    def extend(self, transitions: int) -> None:
        """Continue the last phase of a finished curriculum until so many transitions of the whole run."""
        self.index, self._extended_to = len(self.phases) - 1, transitions

    def _is_promoted(self) -> bool:
        promotion = self.phase.promote_at
        if self._extended_to is not None or promotion is None or len(self._winners) < promotion.games:
            return False
        wins = sum(winner > 0 for winner in self._winners)
        return wilson(wins, promotion.games)[0] > promotion.win_rate

    # ------------------------------------------------------------------ counts

    def count(self, transitions: int, results: Results | None = None) -> None:
        """Take in a round: the transitions made in it, and the episodes that ended."""
        self.transitions += transitions
        if results is not None:
            self.episodes += len(results)
            self._has_games = any(results.opponents)
            self._winners.extend(results.winners.tolist())
            columns = results.returns, results.shaped_returns, results.lengths, results.winners
            self._latest.extend(zip(*(column.tolist() for column in columns), strict=True))

    @property
    def has_latest(self) -> bool:
        """Return whether 100 episodes have ended, so that `latest` is of as many."""
        return len(self._latest) == _LATEST

    def latest(self) -> dict[str, float]:
        """Return means over the last 100 episodes; see `events.Progress`."""
        if not self._latest:
            return {}
        *columns, winners = np.array(self._latest).T
        means = dict(zip(("return", "shaped_return", "length"), np.mean(columns, axis=1).tolist(), strict=True))
        rates = {"win_rate": float((winners > 0).mean()), "loss_rate": float((winners < 0).mean())}
        return means | rates if self._has_games else means

    def take_examination(self, found: Examination) -> bool:
        """Take in an evaluation; whether it is the best so far."""
        self.examination, self.examined_at, self.is_examination_due = found, self.transitions, False
        is_best = found.score > self._best
        self._best = max(self._best, found.score)
        return is_best
