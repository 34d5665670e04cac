"""What a run tells its observers, put together from what its parts know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from envfleet.agents import Agent
from envfleet.training.arena.arena import Arena
from envfleet.training.arena.stopwatch import Stopwatch
from envfleet.training.events import Began, Ended, Episodes, Evaluated, Learned, PhaseBegan, Progress, Results, Saved
from envfleet.training.loop.announcer import Announcer
from envfleet.training.loop.budget import Budget
from envfleet.training.loop.curriculum import CurriculumProgress
from envfleet.training.loop.examining import Examination
from envfleet.training.loop.tally import Tally


class Narrator:
    """Tells what happens in a run.

    Args:
        announcer: Its observers.
        agent: Who learns.
        curriculum: Where the run is.
        tally: What it has counted.
        budget: What it may spend.
        stopwatch: Where its time goes.
    """

    def __init__(
        self,
        announcer: Announcer,
        agent: Agent[Any],
        *,
        curriculum: CurriculumProgress,
        tally: Tally,
        budget: Budget,
        stopwatch: Stopwatch,
    ) -> None:
        self._announcer, self._agent, self._curriculum = announcer, agent, curriculum
        self._tally, self._budget, self._watch = tally, budget, stopwatch

    def began(self, run_name: str, arena: Arena, folder: Path | None) -> None:
        """The run begins, or goes on."""
        event = Began(
            run_name=run_name,
            agent=self._agent.name,
            num_envs=arena.num_envs,
            plan=arena.plan,
            phases=tuple(phase.name for phase in self._curriculum.phases),
            folder=folder,
            **self._counts(),
        )
        self._announcer.tell(event)

    def phase_began(self) -> None:
        """A phase begins."""
        index, tally = self._curriculum.index, self._tally
        self._announcer.tell(PhaseBegan(index, self._curriculum.phase.name, tally.transitions, tally.episodes))

    def episodes_ended(self, results: Results) -> None:
        """Episodes ended in a round, and are counted already."""
        count = len(results.env_indices)
        event = Episodes(
            numbers=self._tally.episodes - count + np.arange(count),
            phase=self._curriculum.index,
            phase_name=self._curriculum.phase.name,
            transitions=self._tally.transitions,
            updates=self._agent.num_updates,
            **vars(results),
        )
        self._announcer.tell(event)

    def learned(self) -> None:
        """Figures of updates since the last time, if there were any."""
        figures = self._tally.take_figures()
        if figures:
            self._announcer.tell(Learned(figures, self._agent.num_updates, self._tally.transitions, self._phase_index))

    def progressed(self) -> None:
        """The run goes on."""
        curriculum, index, transitions = self._curriculum, self._phase_index, self._tally.transitions
        times = self._watch.times
        event = Progress(
            phase=index,
            phase_name=curriculum.phases[index].name,
            phase_share=1.0 if curriculum.is_finished else curriculum.phase_share,
            run_share=max(curriculum.share, self._budget.share(transitions)),
            steps_per_s=self._announcer.take_speed(transitions, times.total - times.evaluation),
            elapsed_s=self._budget.elapsed_s,
            times=times,
            **self._counts(),
        )
        self._announcer.tell(event)

    def evaluated(self, found: Examination, is_best: bool) -> None:
        """The learner was evaluated."""
        event = Evaluated(
            results=found.results,
            phase=self._phase_index,
            score=found.score,
            is_best=is_best,
            ratings=found.ratings,
            **self._counts(),
        )
        self._announcer.tell(event)

    def saved(self, path: Path, *, is_best: bool) -> None:
        """A checkpoint is on the disk."""
        self._announcer.tell(Saved(path, self._tally.transitions, is_best=is_best))

    def ended(self, reason: str) -> None:
        """The run is over."""
        event = Ended(reason=reason, elapsed_s=self._budget.elapsed_s, times=self._watch.times, **self._counts())
        self._announcer.tell(event)

    def _counts(self) -> dict[str, int]:
        return {
            "transitions": self._tally.transitions,
            "episodes": self._tally.episodes,
            "updates": self._agent.num_updates,
        }

    @property
    def _phase_index(self) -> int:
        """Of the phase, and of the last one when all are done."""
        return min(self._curriculum.index, len(self._curriculum.phases) - 1)
