"""Interface of an environment to the service that hosts it, beyond Gymnasium's."""

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
"""Observations with more numbers are not drawn."""


@dataclasses.dataclass(frozen=True)
class EpisodeProtocol:
    """Decisions of the episode protocol in an environment where one decision spans several steps.

    The environment's infos have `num_rows`, the rows of an observation that a decision has filled, and `reason`, a key
    of `reasons` once the episode has ended by itself, else 0; `reason` is an attribute of sub-environments, too.

    Attributes:
        names: Names of the environment for clients, in addition to its id.
        option: Option of the environment for the most steps of a decision.
        span: Parameter of the kernel for how many of them there are, and the name of that number in stored events.
        longest: Value of `option`.
        actions: Names of the actions, in order.
        reasons: Why episodes end.
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
            InvalidArgument: It is unknown.
        """
        if not 0 <= action < len(self.actions):
            known = ", ".join(f"{number} ({name})" for number, name in enumerate(self.actions))
            raise InvalidArgument(f"action={action}: pass one of {known}")


class Line(NamedTuple):
    """Something that was measured over an episode: values `(points,)`."""

    title: str
    values: NDArray[Any]
    unit: str = ""


class Mark(NamedTuple):
    """Something that happened at a point of the x axis; the tone is `"good"`, `"bad"` or `"warn"`."""

    at: float
    word: str
    tone: str


class Portrait(NamedTuple):
    """An episode in lines, to be drawn.

    Attributes:
        lines: Over the axis' unit, from 1.
        ends: Where each step ends on that axis, `(steps,)`.
        marks: What happened.
        text: The same in words.
    """

    lines: Sequence[Line]
    ends: NDArray[Any]
    marks: Sequence[Mark] = ()
    text: str = ""


class EpisodeNotes(Protocol):
    """Notes an episode."""

    def add(self, observation: Any, action: Any, reward: float, *, info: Mapping[str, Any]) -> None:
        """Add a step: its action and its result."""

    def portrait(self) -> Portrait:
        """Return what was noted."""


class PlainLog:
    """Notes observations of few numbers, and actions that are whole numbers."""

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
        """Return what was noted."""
        columns = np.stack(self.observations, axis=1) if self.observations else ()
        lines = [Line(f"observation[{k}]", column) for k, column in enumerate(columns)]
        if self.actions:
            lines.append(Line("action", np.array(self.actions)))
        return Portrait(lines, np.arange(1, self._num_steps + 1))


class CountedStep(NamedTuple):
    """A step of some sub-environments, to be counted.

    Attributes:
        rows: Rows that stepped, `(K,)`.
        actions: Theirs.
        infos: Theirs, in Gymnasium's form.
        counted: True where the step counts, `(K,)`.
        ended: True where the step ended the episode, `(K,)`.
    """

    rows: NDArray[np.int64]
    actions: Any
    infos: Mapping[str, Any]
    counted: NDArray[np.bool_]
    ended: NDArray[np.bool_]


class Hosting:
    """Defaults for any environment; an environment that knows more overrides them in a subclass.

    Attributes:
        limits: Arguments that participants may give: of a whole number the most, `None` for a bool.
        readable: Attributes that participants may read.
        warm_options: Options of a kernel's fleets that are made once as a service starts, so that they are compiled.
        columns: What is counted of running episodes, with the dtype of each.
        unit: What the length of an episode is counted in: one of `columns`, or steps.
        glance: Titles of the plotted lines that a participant sees first; if empty, the plot is drawn
            only where it is asked for.
        abandon_penalty: Reward taken from an abandoned episode in scores, at least what leaving it early could save:
            0 where rewards are never negative. `None` if unknown; then the host decides.
        episodes: How the episode protocol is spoken of it; `None` if it is not.
    """

    limits: ClassVar[Mapping[str, int | None]] = {}
    readable: ClassVar[tuple[str, ...]] = ()
    warm_options: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    columns: ClassVar[Mapping[str, Any]] = {}
    unit: ClassVar[str] = "steps"
    glance: ClassVar[tuple[str, ...]] = ()
    abandon_penalty: ClassVar[float | None] = None
    episodes: ClassVar[EpisodeProtocol | None] = None

    def make(self, spec: EnvSpec, num_envs: int, autoreset_mode: AutoresetMode, options: Mapping[str, Any]) -> Any:
        """Make a fleet in a way of the environment's own; `None` for the usual way."""
        return None

    def count(self, columns: Mapping[str, NDArray[Any]], step: CountedStep) -> NDArray[Any] | None:
        """Count a step of some sub-environments.

        Args:
            columns: To write to, `(num_envs,)` each.
            step: Result of the step.

        Returns:
            Why it ended, an entry for each of `step.rows`; `None` if that is not known.
        """
        return None

    def details(self, columns: Mapping[str, NDArray[Any]], row: int, reason: Any) -> dict[str, Any]:
        """Return what is stored of an ended episode in addition to its return and length.

        Args:
            columns: As `count` wrote them.
            row: Row of the environment.
            reason: Its entry of what `count` returned; `None` if it was abandoned.
        """
        return {}

    def ending(self, outcome: str, details: Mapping[str, Any]) -> tuple[str, str]:
        """Return a word for how an episode has ended, and its tone: `"good"`, `"bad"` or `"dull"`.

        Args:
            outcome: `"terminated"`, `"truncated"` or `"abandoned"`.
            details: What is stored of it.
        """
        return outcome, "dull"

    def metrics(self, episodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return what the episode protocol reports of stored episodes (at least one) beyond their rewards.

        Args:
            episodes: `length` and `details` of each.
        """
        return {}

    def log(self) -> EpisodeNotes:
        """Return what notes an episode for its portrait."""
        return PlainLog()
