"""What a training run tells those who watch it: records, plots, a progress bar, or code of your own."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.registry import find_own

LEARNER = "learner"
"""Name of the learner among ratings."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Event:
    """Something that happened in a run, and where in the run that was.

    Attributes:
        transitions: Made so far, in all sittings.
        episodes: Ended so far, likewise.
        updates: That the agent acts by, likewise.
        phase: Index of the phase, from 0; of the last one once all are done.
        phase_name: Its name.
    """

    transitions: int
    episodes: int
    updates: int
    phase: int
    phase_name: str


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Began(Event):
    """The run begins, or goes on where it was interrupted.

    Attributes:
        run_name: Its name.
        agent: Kind of the agent: `"SAC"`, …
        num_envs: Sub-environments.
        plan: Where they run, in a few words.
        phases: Names of the phases of the curriculum, in order.
        folder: Where the run's files are; `None` if it writes none.
    """

    run_name: str
    agent: str
    num_envs: int
    plan: str
    phases: tuple[str, ...]
    folder: Path | None = None


class PhaseBegan(Event):
    """All sub-environments were reset and play by the rules of the phase now."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Results:
    """E episodes that ended, as columns.

    Attributes:
        env_indices: The sub-environment of each, int64 `(E,)`.
        returns: Sum of the environment's rewards, float64 `(E,)`.
        shaped_returns: Sum of the rewards that were learned from, float64 `(E,)`.
        lengths: Steps, int64 `(E,)`.
        winners: 1 where the learner won, -1 where it lost, 0 for a draw or where nobody can win, int64 `(E,)`.
        truncated: Whether time ended it, bool `(E,)`.
        modes: Name of the environment's mode, one per episode; `""` where there are none.
        opponents: Name of the opponent, one per episode; `""` where there is none.
    """

    env_indices: NDArray[np.int64]
    returns: NDArray[np.float64]
    shaped_returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    winners: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    modes: tuple[str, ...]
    opponents: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.env_indices)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Episodes(Results, Event):
    """The E episodes that ended in one round; they are among the `episodes` of the run already."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Learned(Event):
    """Losses and other figures, means over the updates since the last such event.

    It comes after a fixed number of transitions, so that runs which are alike tell it alike.

    Attributes:
        figures: By name, as the agent's `update` returns them.
    """

    figures: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Times:
    """Where the seconds of a run went.

    Attributes:
        act: The learner's and its opponents' choices of actions.
        env: Sending actions and taking in results; where this thread steps (serial, kernel) also the steps themselves.
        wait: Waiting for workers that were still stepping when there was nothing left to learn.
        update: Remembering and gradient updates.
        evaluation: Evaluations and checkpoints.
    """

    act: float = 0.0
    env: float = 0.0
    wait: float = 0.0
    update: float = 0.0
    evaluation: float = 0.0

    @property
    def training(self) -> float:
        """All but evaluations and checkpoints."""
        return self.act + self.env + self.wait + self.update


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Progress(Event):
    """How far the run is; comes about once per second.

    Attributes:
        run_share: How much of the run is done, from 0 to 1, by whatever will end it first.
        steps_per_s: Transitions per second of the last moments, without evaluations and checkpoints.
        elapsed_s: Seconds since the run began or was resumed.
        times: Where they went.
        latest: Means over the last 100 episodes, by name: `return`, `shaped_return`, `length` and, in games, `win_rate`
            and `loss_rate`; empty before the first.
    """

    run_share: float
    steps_per_s: float
    elapsed_s: float
    times: Times
    latest: Mapping[str, float]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Examination:
    """How good the learner is.

    Attributes:
        results: By name of the opponent (`"none"` where there is none, `"pool"` for snapshots of the learner): figures
            by name, such as `win_rate`, `draw_rate`, `loss_rate`, `win_rate_low`, `win_rate_high`, `games`,
            `mean_return`.
        score: What the best checkpoint is chosen by: the mean of win rates plus half the draws, or the mean return.
        ratings: By name, of the frozen `"learner"` and of snapshots it was evaluated against: `rating` and `rating_sd`;
            empty where nobody plays against it.
    """

    results: Mapping[str, Mapping[str, float]]
    score: float
    ratings: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)


class Evaluating(Event):
    """An evaluation of the learner begins; `Evaluated` follows, unless somebody asks to stop."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Evaluated(Examination, Event):
    """The learner was evaluated, apart from training.

    Attributes:
        is_best: Whether it is the best so far.
    """

    is_best: bool


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Saved(Event):
    """A checkpoint is on the disk.

    Attributes:
        path: The agent's file.
        is_best: Whether it is kept as the best so far.
    """

    path: Path
    is_best: bool


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Ended(Event):
    """The run is over, and everything is saved.

    Attributes:
        reason: Why: `"completed"`, `"max_minutes"`, `"max_transitions"`, `"stop_at_return"`, `"observer"`,
            `"interrupted"`.
        elapsed_s: Seconds since the run began or was resumed.
        times: Where they went.
    """

    reason: str
    elapsed_s: float
    times: Times


class Observer(abc.ABC):
    """Whoever wants to know what happens in a run; subclasses need not have a state or anything to close.

    A run calls `on_event` for each event, in order and from one thread. It ends in order after the round in which an
    observer sets `stop_requested`. An observer that writes files flushes them in
    `state_dict` and tells how long they are, so that a run which is resumed from that checkpoint can cut them to it.
    """

    stop_requested = False

    @abc.abstractmethod
    def on_event(self, event: Event) -> None:
        """Take notice of an event."""

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes, of numbers, text, arrays, lists and dicts; part of every checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to where the run was when `state_dict` returned this; before `Began`."""
        return

    def close(self) -> None:
        """Write what is left and let go of files; also after an error, in which case `Ended` never came."""
        return


def find_observers(names: Sequence[str]) -> list[type[Observer]]:
    """Return the classes of a configuration's `observers`; a run makes one of each, without arguments.

    Args:
        names: `"module:Name"` each.

    Raises:
        InvalidArgument: There is no such class, or it is none of observers.
    """
    kinds = []
    for index, name in enumerate(names):
        kind = find_own(name, f"observers[{index}]")
        if not isinstance(kind, type) or not issubclass(kind, Observer):
            raise InvalidArgument(
                f"observers[{index}] is {name!r}, which is no class of observers: derive it from "
                "envfleet.training.events.Observer"
            )
        kinds.append(kind)
    return kinds
