"""The seam between the one fleet and what carries out its requests: worker processes, kernels, services, others."""

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
from envfleet.fleet.checks import Seeds
from envfleet.fleet.episodes import EndedEpisodes, EpisodeStatus
from envfleet.fleet.lifecycle import Lifecycle
from envfleet.fleet.stats import FleetStats, Plan

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
        infos: In Gymnasium's form, with arrays of `B` rows.
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
    """Description and abilities of an engine; the fleet refuses other requests with an error.

    Attributes:
        plan: Distribution of sub-environments over workers.
        num_envs: Number of sub-environments.
        single_observation_space: Observation space of one sub-environment.
        single_action_space: Action space of one sub-environment.
        autoreset_mode: Time at which an ended episode is followed by the next one.
        observation_space: Batched; by default batched from the single one.
        reward_space: Of one sub-environment, if its rewards are vectors.
        env_spec: Gymnasium's spec, if the environment has one.
        env_name: Name of the environment if it has no spec.
        render_mode: Render mode of the sub-environments.
        metadata: Metadata of the environment.
        device: Device of returned arrays, `"cpu"` or `"cuda"`.
        has_partial_steps: Whether `send` may step some sub-environments while others wait.
        has_objects: Whether sub-environments are Python objects that `apply` can hand to a function.
        has_states: Whether `get_state` and `set_state` work.
        has_stacks: Whether `stacks` can show Python stacks.
        has_rollouts: Whether `rollout` is one call of the engine's; else the fleet calls `step` in a loop.
        is_bound_to_process: Whether a fork of this process must not use it.
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
    is_bound_to_process: bool = True

    @property
    def reward_shape(self) -> tuple[int, ...]:
        """Shape of one reward; `()` for numbers."""
        return () if self.reward_space is None else self.reward_space.shape

    def refuse_vector_rewards(self, what: str) -> None:
        """Refuse rewards that are vectors on behalf of `what`, which takes numbers only.

        Raises:
            InvalidArgument: They are.
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
    """Answer to a request, which may not be there yet.

    Args:
        wait: Waits for at most the given seconds (`None`: no limit) and returns the answer.
    """

    def __init__(self, wait: Callable[[float | None], Answer]) -> None:
        self._wait = wait

    @classmethod
    def of(cls, answer: Answer) -> Pending[Answer]:
        """Return an answer that is there."""
        return cls(lambda timeout_s: answer)

    def wait(self, timeout_s: float | None = None) -> Answer:
        """Wait for the answer.

        Raises:
            CallTimeout: `timeout_s` passed; nothing is lost, wait again.
        """
        return self._wait(timeout_s)


class Engine(ABC):
    """Interface between the fleet and the code that runs its sub-environments.

    Only steps may be under way while other requests are made, and only steps of other rows. An engine raises
    `InvalidArgument` before it changes anything.

    Attributes:
        traits: Description and abilities of the engine.
        copy: Whether returned arrays are the caller's own.
    """

    traits: Traits
    copy: bool = True

    @abstractmethod
    def step(self, actions: Any) -> StepResult:
        """Step every sub-environment once: check the actions, step, copy the results, build the infos."""

    @abstractmethod
    def send(self, actions: Any, rows: Rows | None = None) -> None:
        """Start to step `rows`, or all, with `actions` batched in that order."""

    @abstractmethod
    def collect(self, count: int | None = None, rows: Rows | None = None, timeout_s: float | None = None) -> Batch:
        """Wait for steps that were sent.

        Args:
            count: Number of steps to wait for; if more have finished, the ones that were sent, or finished, first.
            rows: Rows to wait for instead, in the order of the result. Without both: all, in order.
            timeout_s: Timeout in seconds.

        Raises:
            CallTimeout: `timeout_s` passed; nothing is lost, call it again.
        """

    @abstractmethod
    def submit(self, request: Request[Answer]) -> Pending[Answer]:
        """Start a request. An engine that has nothing to wait for carries it out before it returns."""

    @abstractmethod
    def observe(self, rows: Rows | None = None, *, final: bool = False) -> Any:
        """Return the last observations of `rows`, or all; with `final` the last ones of the ended episodes."""

    @abstractmethod
    def episodes(self) -> EpisodeStatus:
        """Return the present state of every episode, on the host."""

    @abstractmethod
    def ended_episodes(self) -> EndedEpisodes:
        """Return the episodes that ended in the last step, on the host; valid only if any did."""

    @abstractmethod
    def look(self, *, stacks: bool = False) -> FleetStats:
        """Return statistics; may be called from any thread, also while another one is in the fleet."""

    @abstractmethod
    def close(self, timeout_s: float) -> list[Failure]:
        """Release everything, by force after `timeout_s`, and return what sub-environments raised; idempotent."""

    def abort(self) -> None:
        """End work that is under way by force, if that is possible; from any thread."""
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
        """Return whether what is under way may never finish, so that a reset of all may replace it."""
        return False

    def state_after(self, error: BaseException) -> Lifecycle | None:
        """Return the state of the fleet after a request that raised `error`; `None` if the state is what it was."""
        return None if isinstance(error, _HARMLESS) else Lifecycle.TORN

    def describe(self) -> str:
        """Return where the sub-environments are, for the fleet's `repr`."""
        return self.traits.plan.describe()


_HARMLESS = (AttributeError, CallPending, CallTimeout, InvalidArgument, KernelError, ResetNeeded, StateUnsupported)
"""Errors that engines raise before anything has changed."""
