"""A group, the slice of sub-environments of one worker: what it can do, what it tells, how it is set up."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from envfleet.core.arrays import FleetArrays
from envfleet.core.layout import SpaceLayout
from envfleet.core.messages import CallPayload, Reply, ResetPayload
from envfleet.core.state import EnvState
from envfleet.errors import Failure

CLOSE_TIMEOUT_S = 5.0
"""What a group may take to close where nobody says."""


class GroupInfo(NamedTuple):
    """What a group tells of itself once it is built.

    Attributes:
        observation_spaces: Of every sub-environment if they differ, else the one they share.
        action_space: The one they share.
        metadata: Of the first.
        spec: Of the first.
        render_mode: Of the first.
        pid: Process it lives in.
        identities: `id` of every sub-environment, to find one that stands twice.
    """

    observation_spaces: list[gym.Space[Any]]
    action_space: gym.Space[Any]
    metadata: dict[str, Any]
    spec: Any
    render_mode: str | None
    pid: int
    identities: list[int]


@dataclasses.dataclass(frozen=True)
class GroupOptions:
    """How a group behaves.

    Attributes:
        worker: Index of its worker.
        first_index: Index in the fleet of its first sub-environment.
        autoreset_mode: Gymnasium's.
        on_failure: `"raise"` reports a sub-environment that raised; `"restart"` rebuilds it in place.
        root_seed: Seeds of rebuilt sub-environments derive from it.
        incarnation: How often this worker was started before.
        lost: Why the predecessor ended; every sub-environment then answers its first step as truncated.
        same_bounds: Observation spaces must be equal, not only of one shape and type.
        is_inline: The group runs in the owner's thread.
        step_timeout_s: Deadline of a step or reset, for the message of one that overran it.
        has_spares: Every sub-environment has a second one that is reset in the background.
    """

    worker: int
    first_index: int
    autoreset_mode: AutoresetMode
    on_failure: Literal["raise", "restart"]
    root_seed: int
    incarnation: int = 0
    lost: str | None = None
    same_bounds: bool = True
    is_inline: bool = False
    step_timeout_s: float | None = None
    has_spares: bool = False


class Group(Protocol):
    """A slice of sub-environments that steps itself over arrays; what every transport carries."""

    num_envs: int

    def describe(self) -> GroupInfo:
        """Check that the sub-environments fit together, and tell what the fleet must know."""
        ...

    def attach(self, arrays: FleetArrays, layouts: tuple[SpaceLayout, SpaceLayout]) -> None:
        """Take the arrays to read actions from and write results to, and the layouts of observations and actions."""
        ...

    def step(self, generation: int, rows: Sequence[int] | None, objects: list[list[Any]]) -> Reply | None:
        """Step all sub-environments, or those in `rows`."""
        ...

    def reset(self, generation: int, payload: ResetPayload) -> Reply | None:
        """Reset the sub-environments that the payload names."""
        ...

    def call(self, payload: CallPayload, rows: Sequence[int] | None) -> Reply:
        """Call a method of sub-environments, or get an attribute."""
        ...

    def set_attr(self, name: str, values: Sequence[Any], rows: Sequence[int] | None) -> Reply:
        """Set an attribute of sub-environments, one value each."""
        ...

    def get_state(self, generation: int, rows: Sequence[int]) -> Reply:
        """Save sub-environments; the value has one state each."""
        ...

    def set_state(self, generation: int, states: Sequence[tuple[int, Any]]) -> Reply:
        """Bring sub-environments back, given as (row, state)."""
        ...

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> list[Failure]:
        """Close all sub-environments; returns what they raised.

        Args:
            timeout_s: What this may take, apart from what the sub-environments' own `close` takes.
        """
        ...


class RowState(NamedTuple):
    """A saved row of a group.

    Attributes:
        env: The sub-environment; `None` for one that may as well begin afresh.
        observation: Its last observation.
        is_awaiting: Whether its episode has ended.
        length: Steps of the episode so far.
    """

    env: EnvState | None
    observation: Any
    is_awaiting: bool
    length: int
