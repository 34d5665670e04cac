"""Events of a training run and their observers: records, plots, the progress bar, or your own code."""

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
"""Name of the learner in ratings."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Event:
    """Event with its position in the run.

    Attributes:
        transitions: Transitions so far, over all sessions.
        episodes: Finished episodes so far, over all sessions.
        updates: Gradient updates of the acting policy, over all sessions.
        phase: Index of the phase, from 0; index of the last one after the end.
        phase_name: Name of the phase.
    """

    transitions: int
    episodes: int
    updates: int
    phase: int
    phase_name: str


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Began(Event):
    """Start of a run, or continuation of an interrupted one.

    Attributes:
        run_name: Name of the run.
        agent: Algorithm: `"SAC"`, …
        num_envs: Number of sub-environments.
        plan: Short description of the backend.
        phases: Names of the phases of the curriculum, in order.
        folder: Folder of the run's files; `None` if it writes none.
    """

    run_name: str
    agent: str
    num_envs: int
    plan: str
    phases: tuple[str, ...]
    folder: Path | None = None


class PhaseBegan(Event):
    """Start of a phase: all sub-environments were reset with its settings."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Results:
    """E finished episodes, as columns.

    Attributes:
        env_indices: Index of the sub-environment, int64 `(E,)`.
        returns: Sum of the environment's rewards, float64 `(E,)`.
        shaped_returns: Sum of the learner's rewards, float64 `(E,)`.
        lengths: Steps, int64 `(E,)`.
        winners: 1 where the learner won, -1 where it lost, 0 for draws and in single-player environments, int64 `(E,)`.
        truncated: True if the episode was truncated, bool `(E,)`.
        modes: Name of the environment's mode, one per episode; `""` without modes.
        opponents: Name of the opponent, one per episode; `""` without an opponent.
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
    """The E episodes that ended in one round; the run's `episodes` includes them."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Learned(Event):
    """Losses and other metrics, averaged over the updates since the last such event.

    Sent after a fixed number of transitions, so that equal runs send equal events.

    Attributes:
        figures: Metrics by name, as the agent's `update` returns them.
    """

    figures: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Times:
    """Time spent in a run, in seconds.

    Attributes:
        act: Action selection by the learner and its opponents.
        env: Sending actions and receiving results, including the steps in backends without workers (serial, kernel).
        wait: Waiting for workers after all scheduled updates were made.
        update: Storing transitions and gradient updates.
        evaluation: Evaluations and checkpoints.
    """

    act: float = 0.0
    env: float = 0.0
    wait: float = 0.0
    update: float = 0.0
    evaluation: float = 0.0

    @property
    def training(self) -> float:
        """Total without evaluations and checkpoints."""
        return self.act + self.env + self.wait + self.update


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Progress(Event):
    """Progress of the run, about once per second.

    Attributes:
        run_share: Finished share of the run, from 0 to 1, relative to the limit that will end it first.
        steps_per_s: Recent transitions per second, without evaluations and checkpoints.
        elapsed_s: Seconds since the run began or was resumed.
        times: Time spent, by activity.
        latest: Means over the last 100 episodes, by name: `return`, `shaped_return`, `length` and, in games, `win_rate`
            and `loss_rate`; empty before the first.
    """

    run_share: float
    steps_per_s: float
    elapsed_s: float
    times: Times
    latest: Mapping[str, float]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class EvaluationSummary:
    """Result of an evaluation of the learner.

    Attributes:
        results: Metrics by name, such as `win_rate`, `draw_rate`, `loss_rate`, `win_rate_low`, `win_rate_high`,
            `games`, `mean_return`; by name of the opponent (`"none"` without one, `"pool"` for snapshots).
        score: Criterion of the best checkpoint: the mean of win rates plus half the draw rates, or the mean return.
        ratings: `rating` and `rating_sd` of the frozen `"learner"` and of the snapshots it was evaluated against, by
            name; empty in single-player environments.
    """

    results: Mapping[str, Mapping[str, float]]
    score: float
    ratings: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)


class Evaluating(Event):
    """Start of an evaluation; `Evaluated` follows unless the run is stopped."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Evaluated(EvaluationSummary, Event):
    """End of an evaluation.

    Attributes:
        is_best: True if its score is the best so far.
    """

    is_best: bool


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Saved(Event):
    """Checkpoint written.

    Attributes:
        path: File of the agent.
        is_best: True if it is the best checkpoint so far.
    """

    path: Path
    is_best: bool


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Ended(Event):
    """End of the run, after everything was saved.

    Attributes:
        reason: Reason for the end: `"completed"`, `"max_minutes"`, `"max_transitions"`, `"stop_at_return"`,
            `"observer"`, `"interrupted"`.
        elapsed_s: Seconds since the run began or was resumed.
        times: Time spent, by activity.
    """

    reason: str
    elapsed_s: float
    times: Times


class Observer(abc.ABC):
    """Base class of observers; state and `close` are optional.

    A run calls `on_event` for each event, in order and from one thread. It saves and ends after the round in which an
    observer sets `stop_requested`. An observer that writes files flushes them in `state_dict` and includes their
    lengths, so that a resumed run can truncate them to the checkpoint.
    """

    stop_requested = False

    @abc.abstractmethod
    def on_event(self, event: Event) -> None:
        """Handle an event."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints, made of numbers, text, arrays, lists and dicts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned; called before `Began`."""
        return

    def close(self) -> None:
        """Flush and close files; also called after an error, without an `Ended` event."""
        return


def find_observers(names: Sequence[str]) -> list[type[Observer]]:
    """Return the classes of a configuration's `observers`; a run makes one of each, without arguments.

    Args:
        names: Classes as `"module:Name"`.

    Raises:
        InvalidArgument: A class cannot be found or is not a subclass of `Observer`.
    """
    kinds = []
    for index, name in enumerate(names):
        kind = find_own(name, f"observers[{index}]")
        if not isinstance(kind, type) or not issubclass(kind, Observer):
            raise InvalidArgument(
                f"observers[{index}] is {name!r}, which is not a class of observers: derive it from "
                "envfleet.training.events.Observer"
            )
        kinds.append(kind)
    return kinds
