"""Interface between `Fleet` and the backends: worker processes, kernels, services and others."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.errors import (
    CallPending,
    CallTimeout,
    Failure,
    InvalidArgument,
    KernelError,
    ResetNeeded,
    StateUnsupported,
)
from envfleet.fleet.checks import Seeds, check_mask, check_options, check_seeds
from envfleet.fleet.episodes import EndedEpisodes, EpisodeStatus
from envfleet.fleet.lifecycle import Lifecycle
from envfleet.fleet.stats import FleetStats, Plan

_REFUSALS = {
    "has_partial_steps": "which steps all at once: pass all, or make the fleet with another backend",
    "has_objects": "where sub-environments are not Python objects: read attributes with get_attr()",
    "has_states": "which cannot save sub-environments: make the fleet with another backend",
    "has_stacks": "which runs no Python here; see stats()",
}

Rows: TypeAlias = NDArray[np.int64]
"""Indices of sub-environments, each once."""

Answer = TypeVar("Answer")

StepResult: TypeAlias = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]
"""Observations, rewards, terminated, truncated and infos of a step of all sub-environments."""


class Batch(NamedTuple):
    """Result of `recv`, with one row per sub-environment that was ready.

    Attributes:
        observations: Batched as `observation_space` batches them, with one row per entry of `env_indices`.
        rewards: float64 `(B,)`, or `(B, k)` if rewards are vectors.
        terminated: bool `(B,)`.
        truncated: bool `(B,)`.
        infos: Infos in Gymnasium's form, with arrays of `B` rows.
        env_indices: Sub-environment of each row, int64 `(B,)`.
    """

    observations: Any
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: dict[str, Any]
    env_indices: Rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traits:
    """Description and capabilities of an engine; the fleet raises an error for unsupported requests.

    Attributes:
        plan: Distribution of sub-environments over workers.
        num_envs: Number of sub-environments.
        single_observation_space: Observation space of one sub-environment.
        single_action_space: Action space of one sub-environment.
        autoreset_mode: Time of the reset after the end of an episode.
        observation_space: Batched observation space; by default derived from `single_observation_space`.
        reward_space: Reward space of one sub-environment, if its rewards are vectors.
        env_spec: Gymnasium's spec, if the environment has one.
        env_name: Name of the environment if it has no spec.
        render_mode: Render mode of the sub-environments.
        metadata: Metadata of the environment.
        device: Device of returned arrays, `"cpu"` or `"cuda"`.
        has_partial_steps: True if `send` can step some of the sub-environments.
        has_objects: True if sub-environments are Python objects, which `apply` can pass to a function.
        has_states: True if `get_state` and `set_state` work.
        has_stacks: True if `stacks` can return Python stacks.
        has_rollouts: True if the engine implements `rollout`; else the fleet calls `step` in a loop.
        attempt_episodes: Number of episodes of the ranked attempt that this is, if it is one.
        pending_rows: In a fleet that continues another one, rows that the first `recv` returns.
        is_bound_to_process: True if a fork of this process must not use the engine.
    """

    plan: Plan
    num_envs: int
    single_observation_space: gym.Space[Any]
    single_action_space: gym.Space[Any]
    autoreset_mode: AutoresetMode
    observation_space: gym.Space[Any] | None = None
    reward_space: gym.spaces.Box | None = None
    env_spec: Any = None
    env_name: str = "custom environment"
    render_mode: str | None = None
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    device: str = "cpu"
    has_partial_steps: bool = True
    has_objects: bool = True
    has_states: bool = True
    has_stacks: bool = True
    has_rollouts: bool = False
    attempt_episodes: int | None = None
    pending_rows: NDArray[np.int64] | None = None
    is_bound_to_process: bool = True

    @property
    def reward_shape(self) -> tuple[int, ...]:
        """Shape of one reward; `()` for numbers."""
        return () if self.reward_space is None else self.reward_space.shape

    def require(self, trait: str, call: str) -> None:
        """Check that the engine has what a call requires.

        Args:
            trait: Name of the required attribute, such as `"has_states"`.
            call: The call as its user wrote it.

        Raises:
            InvalidArgument: It does not.
        """
        if not getattr(self, trait):
            raise InvalidArgument(f"{call} with backend {self.plan.backend!r}, {_REFUSALS[trait]}")

    def refuse_vector_rewards(self, what: str) -> None:
        """Raise an error if rewards are vectors and `what` accepts numbers only.

        Raises:
            InvalidArgument: Rewards are vectors.
        """
        if self.reward_shape:
            raise InvalidArgument(
                f"rewards of this environment are vectors, reward_space={self.reward_space}, but {what} takes numbers: "
                "wrap the environment so that rewards are numbers, for example in MO-Gymnasium's LinearReward"
            )


class Request(Generic[Answer]):
    """Request to an engine; its type argument is the type of its answer."""


@dataclasses.dataclass(frozen=True)
class Reset(Request[dict[str, Any]]):
    """Reset `rows`, or all; the answer is the infos, with one row per row that was reset.

    An int seed means `seed + index`; options are one mapping, or one per row.
    """

    rows: Rows | None = None
    seeds: Seeds = None
    options: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None


def read_reset(seed: Any, options: Any, traits: Traits) -> Reset:
    """Return the request for a call of `reset` with these arguments.

    Raises:
        InvalidArgument: Seeds, mask or options are invalid.
    """
    num_envs = traits.num_envs
    if options is not None:
        check_options(options, num_envs if traits.has_objects else None)
    rows, seeds = None, check_seeds(seed, num_envs)
    if isinstance(options, Mapping) and "reset_mask" in options:
        rows = check_mask(options["reset_mask"], num_envs)
        options = {name: value for name, value in options.items() if name != "reset_mask"}
    if rows is None or len(rows) == num_envs:
        return Reset(None, seeds, options)
    if isinstance(seeds, list):
        seeds = [seeds[row] for row in rows.tolist()]
    return Reset(rows, seeds, options)


@dataclasses.dataclass(frozen=True)
class Call(Request[Sequence[Any]]):
    """Call a method by name, read an attribute, or run a function of the sub-environment, for `rows` or all.

    The answer is one value per row.
    """

    name: str | Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rows: Rows | None = None


@dataclasses.dataclass(frozen=True)
class SetAttr(Request[None]):
    """Set an attribute of every sub-environment; `values` is a list or tuple of one each, or one value for all."""

    name: str
    values: Any


@dataclasses.dataclass(frozen=True)
class GetState(Request[Any]):
    """Save `rows`, or all; the answer has one entry per row and can be indexed by row."""

    rows: Rows | None = None


@dataclasses.dataclass(frozen=True)
class SetState(Request[None]):
    """Restore saved states of `rows`, or all."""

    states: Any
    rows: Rows | None = None


class Pending(Generic[Answer]):
    """Answer to a request that may still be running.

    Args:
        wait: Function that waits for at most the given seconds (`None`: no limit) and returns the answer.
    """

    def __init__(self, wait: Callable[[float | None], Answer]) -> None:
        self._wait = wait

    @classmethod
    def of(cls, answer: Answer) -> Pending[Answer]:
        """Return a `Pending` of an answer that is available."""
        return cls(lambda timeout_s: answer)

    def wait(self, timeout_s: float | None = None) -> Answer:
        """Wait for the answer.

        Raises:
            CallTimeout: `timeout_s` passed; nothing is lost, wait again.
        """
        return self._wait(timeout_s)


class Engine(ABC):
    """Interface between the fleet and the code that runs its sub-environments.

    Only steps may be pending when another request is made, and only steps of other rows. An engine raises
    `InvalidArgument` before it changes anything.

    Attributes:
        traits: Description and abilities of the engine.
        copy: True if returned arrays are copies; False if later steps overwrite them.
    """

    traits: Traits
    copy: bool = True

    @abstractmethod
    def step(self, actions: Any) -> StepResult:
        """Check the actions, step every sub-environment once, and return the results with infos."""

    @abstractmethod
    def send(self, actions: Any, rows: Rows | None = None) -> None:
        """Start to step `rows`, or all, with `actions` batched in that order."""

    @abstractmethod
    def collect(self, count: int | None = None, rows: Rows | None = None, timeout_s: float | None = None) -> Batch:
        """Wait for steps that were sent.

        Args:
            count: Number of steps to wait for; if more have finished, the ones that were sent, or finished, first.
            rows: Rows to wait for instead, in the order of the result. By default all rows, in order.
            timeout_s: Timeout in seconds.

        Raises:
            CallTimeout: `timeout_s` passed; nothing is lost, call it again.
        """

    @abstractmethod
    def submit(self, request: Request[Answer]) -> Pending[Answer]:
        """Start a request. A synchronous engine does all work here."""

    @abstractmethod
    def observe(self, rows: Rows | None = None, *, final: bool = False) -> Any:
        """Return the last observations of `rows`, or all; with `final` the last ones of the ended episodes."""

    @abstractmethod
    def episodes(self) -> EpisodeStatus:
        """Return the current state of every episode, in host memory."""

    @abstractmethod
    def ended_episodes(self) -> EndedEpisodes:
        """Return the episodes that ended in the last step, in host memory; valid only if any did."""

    @abstractmethod
    def look(self, *, stacks: bool = False) -> FleetStats:
        """Return statistics. Any thread may call this at any time."""

    @abstractmethod
    def close(self, timeout_s: float) -> list[Failure]:
        """Release all resources, by force after `timeout_s`; return the exceptions of sub-environments; idempotent."""

    def abort(self) -> None:
        """Abort pending work by force, if that is possible. Any thread may call this."""
        return

    def rollout(self, policy: Any, num_steps: int, seed: int | None, out: Any) -> Any:
        """Step `num_steps` times in one call; only engines with `traits.has_rollouts` do."""
        raise InvalidArgument(
            f"backend {self.traits.plan.backend!r} does not support rollouts in one call: step in a loop"
        )

    def count_ended(self) -> int:
        """Return how many episodes have ended and await a reset."""
        return int(np.count_nonzero(self.episodes().ended))

    @property
    def is_stuck(self) -> bool:
        """Return whether pending steps may never finish, so that a reset of all rows discards them."""
        return False

    def state_after(self, error: BaseException) -> Lifecycle | None:
        """Return the state of the fleet after a request that raised `error`; `None` if it is unchanged."""
        return None if isinstance(error, _HARMLESS) else Lifecycle.TORN

    def describe(self) -> str:
        """Return a description of the engine for the fleet's `repr`."""
        return self.traits.plan.describe()


_HARMLESS = (AttributeError, CallPending, CallTimeout, InvalidArgument, KernelError, ResetNeeded, StateUnsupported)
"""Errors that engines raise before anything has changed."""
