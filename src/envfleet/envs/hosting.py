"""Interface between an environment and the service that hosts it, in addition to Gymnasium's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument

_MOST_NUMBERS = 32
"""Maximum number of elements of observations that are plotted."""


@dataclasses.dataclass(frozen=True)
class EpisodeProtocol:
    """Decisions of the episode protocol in an environment where one decision spans several steps.

    The environment's infos have `num_rows`, the number of valid rows of an observation, and `reason`, a key of
    `reasons` once the episode has ended by itself, else 0; `reason` is also an attribute of sub-environments.

    Attributes:
        names: Names of the environment for clients, in addition to its id.
        option: Option of the environment for the maximum number of steps per decision.
        span: Parameter of the kernel for the number of steps per decision; also its name in stored events.
        longest: Maximum of `option`.
        actions: Names of the actions, in order.
        reasons: Reasons of the end of an episode, by number.
    """

    names: tuple[str, ...]
    option: str
    span: str
    longest: int
    actions: tuple[str, ...]
    reasons: Mapping[int, str]

    def check_action(self, action: int) -> None:
        """Check an action.

        Raises:
            InvalidArgument: The action does not exist.
        """
        if not 0 <= action < len(self.actions):
            known = ", ".join(f"{number} ({name})" for number, name in enumerate(self.actions))
            raise InvalidArgument(f"action={action}: pass one of {known}")


class Line(NamedTuple):
    """Line of a plot: values over an episode, `(points,)`."""

    title: str
    values: NDArray[Any]
    unit: str = ""


class Mark(NamedTuple):
    """Event at a point of the x axis; the tone is `"good"`, `"bad"` or `"warn"`."""

    at: float
    word: str
    tone: str


class Portrait(NamedTuple):
    """Plot of an episode.

    Attributes:
        lines: Lines over the x axis, which starts at 1.
        ends: End of each step on the x axis, `(steps,)`.
        marks: Events.
        text: Description of the events.
    """

    lines: Sequence[Line]
    ends: NDArray[Any]
    marks: Sequence[Mark] = ()
    text: str = ""


class EpisodeNotes(Protocol):
    """Recorder of an episode for its plot."""

    def add(self, observation: Any, action: Any, reward: float, *, info: Mapping[str, Any]) -> None:
        """Add a step: its action and its result."""

    def portrait(self) -> Portrait:
        """Return the plot of the recorded episode."""


class PlainLog:
    """Recorder of small observations and of integer actions."""

    def __init__(self) -> None:
        self.observations: list[NDArray[Any]] = []
        self.actions: list[int] = []
        self._num_steps = 0

    def add(self, observation: Any, action: Any, reward: float, *, info: Mapping[str, Any]) -> None:
        """Add a step: its action and its result."""
        self._num_steps += 1
        if isinstance(observation, (int, np.ndarray, np.number)) and np.size(observation) <= _MOST_NUMBERS:
            self.observations.append(np.ravel(observation))
        if isinstance(action, np.integer):
            self.actions.append(int(action))

    def portrait(self) -> Portrait:
        """Return the plot of the recorded episode."""
        columns = np.stack(self.observations, axis=1) if self.observations else ()
        lines = [Line(f"observation[{k}]", column) for k, column in enumerate(columns)]
        if self.actions:
            lines.append(Line("action", np.array(self.actions)))
        return Portrait(lines, np.arange(1, self._num_steps + 1))


class CountedStep(NamedTuple):
    """Step of some sub-environments, for the counters.

    Attributes:
        rows: Rows that stepped, `(K,)`.
        actions: Their actions.
        infos: Their infos, in Gymnasium's form.
        counted: True where the step counts, `(K,)`.
        ended: True where the step ended the episode, `(K,)`.
    """

    rows: NDArray[np.int64]
    actions: Any
    infos: Mapping[str, Any]
    counted: NDArray[np.bool_]
    ended: NDArray[np.bool_]


class Hosting:
    """Default settings for any environment; an environment overrides them in a subclass.

    Attributes:
        limits: Arguments that participants may pass: the maximum of an integer, `None` for a bool.
        ranked_options: Arguments that participants may also pass in ranked attempts: those that change what they see or
            how often they act, not the task.
        ranked_episodes: Number of episodes of a ranked attempt.
        readable: Attributes that participants may read.
        warm_options: Options of kernel fleets that are compiled when a service starts.
        columns: Counters of running episodes, with their dtypes.
        unit: Unit of the length of an episode: one of `columns`, or steps.
        glance: Titles of the lines that are shown first; if empty, a plot is shown only on request.
        abandon_penalty: Penalty for an episode that is unfinished when its attempt ends, at least the gain of leaving
            it early: 0 if rewards are never negative. `None` if unknown; then the host sets it.
        episodes: Settings of the episode protocol; `None` if it is not supported.
    """

    limits: ClassVar[Mapping[str, int | None]] = {}
    ranked_options: ClassVar[tuple[str, ...]] = ("render_mode",)
    ranked_episodes: ClassVar[int] = 100
    readable: ClassVar[tuple[str, ...]] = ()
    warm_options: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    columns: ClassVar[Mapping[str, Any]] = {}
    unit: ClassVar[str] = "steps"
    glance: ClassVar[tuple[str, ...]] = ()
    abandon_penalty: ClassVar[float | None] = None
    episodes: ClassVar[EpisodeProtocol | None] = None

    def make(self, spec: EnvSpec, num_envs: int, autoreset_mode: AutoresetMode, options: Mapping[str, Any]) -> Any:
        """Return a fleet made in a special way; `None` for the default way."""
        return None

    def count(self, columns: Mapping[str, NDArray[Any]], step: CountedStep) -> NDArray[Any] | None:
        """Update the counters by a step of some sub-environments.

        Args:
            columns: Counters to update, `(num_envs,)` each.
            step: Result of the step.

        Returns:
            Reason of the end for each of `step.rows`; `None` if it is unknown.
        """
        return None

    def details(self, columns: Mapping[str, NDArray[Any]], row: int, reason: Any) -> dict[str, Any]:
        """Return the details to store for an ended episode, in addition to its return and length.

        Args:
            columns: Counters, updated by `count`.
            row: Row of the environment.
            reason: Its entry in the result of `count`; `None` if it was abandoned.
        """
        return {}

    def ending(self, outcome: str, details: Mapping[str, Any]) -> tuple[str, str]:
        """Return a word for how an episode has ended, and its tone: `"good"`, `"bad"` or `"dull"`.

        Args:
            outcome: `"terminated"`, `"truncated"` or `"abandoned"`.
            details: Stored details.
        """
        return outcome, "dull"

    def metrics(self, episodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return metrics of stored episodes (at least one) for the episode protocol, in addition to rewards.

        Args:
            episodes: `length` and `details` of each.
        """
        return {}

    def log(self) -> EpisodeNotes:
        """Return a new recorder of an episode."""
        return PlainLog()
