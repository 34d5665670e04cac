"""Where a run is in its curriculum, and what it has counted: figures of updates, latest returns, evaluations."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from envfleet.agents.descent import Means
from envfleet.training.config import Phase
from envfleet.training.evaluation import wilson
from envfleet.training.events import Examination, Results

_LATEST = 100  # episodes


class CurriculumProgress:
    """Counts what is done of each phase, and says when it is over.

    Counts are over all sub-environments: a phase of 1,000 episodes has as many with one of them as with 64.

    Args:
        phases: In order, at least one.

    Attributes:
        index: Of the phase, from 0; the number of phases once all are done.
        episodes: Finished in this phase.
        transitions: Made in this phase.
    """

    def __init__(self, phases: Sequence[Phase]) -> None:
        self.phases = tuple(phases)
        self.index = 0
        self._begin_phase()

    def _begin_phase(self) -> None:
        self.episodes = self.transitions = 0
        promotion = self.phase.promote_at
        self._winners: collections.deque[int] = collections.deque(maxlen=promotion.games if promotion else 0)

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
        if phase.episodes is not None:
            return min(self.episodes / phase.episodes, 1.0)
        return min(self.transitions / (phase.transitions or 1), 1.0)

    @property
    def share(self) -> float:
        """Return how much of the curriculum is done, from 0 to 1, all phases alike."""
        return 1.0 if self.is_finished else (self.index + self._phase_share) / len(self.phases)

    def count(self, transitions: int, winners: ArrayLike = ()) -> None:
        """Take in a round.

        Args:
            transitions: Made in it.
            winners: One number per episode that ended in it: 1 if the learner won, else 0 or -1.
        """
        ended = np.asarray(winners).reshape(-1)
        self.transitions += transitions
        self.episodes += len(ended)
        self._winners.extend(int(winner) for winner in ended)

    def advance(self) -> None:
        """Go on to the next phase, or to the end; what has been counted belongs to the last one."""
        self.index += 1
        self._begin_phase()

    def _is_promoted(self) -> bool:
        promotion = self.phase.promote_at
        if promotion is None or len(self._winners) < promotion.games:
            return False
        wins = sum(winner > 0 for winner in self._winners)
        return wilson(wins, promotion.games)[0] > promotion.win_rate


class Tally:
    """Sums of a run.

    Attributes:
        transitions: Made so far.
        episodes: Ended so far.
        figures: What calls of an agent's `update` returned, since they were last told.
        examination: The latest; `None` before the first.
        examined_at: Transitions at that time.
    """

    def __init__(self) -> None:
        self.transitions = self.episodes = 0
        self.figures = Means()
        self._latest: collections.deque[tuple[float, float, int, int]] = collections.deque(maxlen=_LATEST)
        self._has_games = False
        self._best: float | None = None
        self.examination: Examination | None = None
        self.examined_at: int | None = None

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
        means = dict(zip(("return", "shaped_return", "length"), np.mean(columns, axis=1).tolist(), strict=True))
        rates = {"win_rate": float((winners > 0).mean()), "loss_rate": float((winners < 0).mean())}
        return means | rates if self._has_games else means

    def take_examination(self, found: Examination) -> bool:
        """Take in an evaluation; whether it is the best so far."""
        self.examination, self.examined_at = found, self.transitions
        is_best = self._best is None or found.score > self._best
        if is_best:
            self._best = found.score
        return is_best
