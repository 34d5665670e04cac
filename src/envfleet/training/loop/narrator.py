"""What a run tells its observers, put together from what its parts know, and how fast it goes."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envfleet.agents import Agent
from envfleet.training import events
from envfleet.training.arena.arena import Arena
from envfleet.training.arena.stopwatch import Stopwatch
from envfleet.training.events import Event, Observer, Results
from envfleet.training.loop.budget import Budget
from envfleet.training.loop.curriculum import CurriculumProgress
from envfleet.training.loop.examining import Examination
from envfleet.training.loop.tally import Tally

_PROGRESS_EVERY_S = 0.25


class Narrator:
    """Tells the observers of a run what happens in it.

    Args:
        observers: In the order in which they are told.
        agent: Who learns.
        curriculum: Where the run is.
        tally: What it has counted.
        budget: What it may spend.
        stopwatch: Where its time goes.
    """

    def __init__(
        self,
        observers: Sequence[Observer],
        agent: Agent[Any],
        *,
        curriculum: CurriculumProgress,
        tally: Tally,
        budget: Budget,
        stopwatch: Stopwatch,
    ) -> None:
        self._observers, self._agent, self._curriculum = tuple(observers), agent, curriculum
        self._tally, self._budget, self._watch = tally, budget, stopwatch
        self._told_s = time.monotonic()
        self._worked_s, self._transitions, self._speed = 0.0, 0, 0.0

    def began(self, run_name: str, arena: Arena, folder: Path | None) -> None:
        """Report that the run begins, or goes on."""
        event = events.Began(
            run_name=run_name,
            agent=self._agent.name,
            num_envs=arena.num_envs,
            plan=f"{arena.plan}, {self._agent.learns_by}",
            phases=tuple(phase.name for phase in self._curriculum.phases),
            folder=folder,
            **self._counts(),
        )
        self.tell(event)

    def phase_began(self) -> None:
        """Report that a phase begins."""
        index, tally = self._curriculum.index, self._tally
        self.tell(events.PhaseBegan(index, self._curriculum.phase.name, tally.transitions, tally.episodes))

    def episodes_ended(self, results: Results) -> None:
        """Episodes ended in a round, and are counted already."""
        count = len(results.env_indices)
        event = events.Episodes(
            numbers=self._tally.episodes - count + np.arange(count),
            phase=self._curriculum.index,
            phase_name=self._curriculum.phase.name,
            transitions=self._tally.transitions,
            updates=self._agent.num_updates,
            **vars(results),
        )
        self.tell(event)

    def learned(self) -> None:
        """Figures of updates since the last time, if there were any."""
        figures = self._tally.take_figures()
        if figures:
            self.tell(events.Learned(figures, self._agent.num_updates, self._tally.transitions, self._phase_index))

    def progressed(self) -> None:
        """Report how far the run is."""
        curriculum, index, transitions = self._curriculum, self._phase_index, self._tally.transitions
        times = self._watch.times
        event = events.Progress(
            phase=index,
            phase_name=curriculum.phases[index].name,
            phase_share=1.0 if curriculum.is_finished else curriculum.phase_share,
            run_share=max(curriculum.share, self._budget.share(transitions)),
            steps_per_s=self.take_speed(transitions, times.total - times.evaluation),
            elapsed_s=self._budget.elapsed_s,
            times=times,
            **self._counts(),
        )
        self.tell(event)

    def evaluated(self, found: Examination, is_best: bool) -> None:
        """Report that the learner was evaluated."""
        event = events.Evaluated(
            results=found.results,
            phase=self._phase_index,
            score=found.score,
            is_best=is_best,
            ratings=found.ratings,
            **self._counts(),
        )
        self.tell(event)

    def saved(self, path: Path, *, is_best: bool) -> None:
        """Report that a checkpoint is on the disk."""
        self.tell(events.Saved(path, self._tally.transitions, is_best=is_best))

    def ended(self, reason: str) -> None:
        """Report that the run is over."""
        event = events.Ended(reason=reason, elapsed_s=self._budget.elapsed_s, times=self._watch.times, **self._counts())
        self.tell(event)

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

    # ------------------------------------------------------------------ observers

    def tell(self, event: Event) -> None:
        """Tell all of them."""
        for observer in self._observers:
            observer.on_event(event)

    def begin(self, transitions: int) -> None:
        """Measure speed from now on."""
        self._told_s, self._transitions = time.monotonic(), transitions

    @property
    def is_progress_due(self) -> bool:
        """Return whether it is time to tell how far the run is."""
        return time.monotonic() - self._told_s >= _PROGRESS_EVERY_S

    def take_speed(self, transitions: int, worked_s: float) -> float:
        """Transitions per second since the last time; as it was then if there were none.

        Args:
            transitions: Made so far.
            worked_s: Seconds that it took, without evaluations and checkpoints.
        """
        made, seconds = transitions - self._transitions, worked_s - self._worked_s
        if made and seconds > 0:
            self._speed = made / seconds
        self._told_s, self._worked_s, self._transitions = time.monotonic(), worked_s, transitions
        return self._speed

    def state_dict(self) -> dict[str, Any]:
        """Return the states of observers that have one, by their classes' names and their places among those of one."""
        states = {name: observer.state_dict() for name, observer in self._named()}
        return {name: state for name, state in states.items() if state}

    def _named(self) -> Iterator[tuple[str, Observer]]:
        counts: collections.Counter[str] = collections.Counter()
        for observer in self._observers:
            name = type(observer).__name__
            counts[name] += 1
            yield (name if counts[name] == 1 else f"{name}.{counts[name]}"), observer

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring back the state of those that are here again."""
        for name, observer in self._named():
            if name in state:
                observer.load_state_dict(state[name])

    def close(self) -> None:
        """Close all of them, also where one raises."""
        with contextlib.ExitStack() as closing:
            for observer in reversed(self._observers):
                closing.callback(observer.close)
