"""Slabs: T steps of N sub-environments for an agent that learns from what it just did."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.agents.saving import as_array
from envfleet.agents.transitions import Transitions
from envfleet.errors import InvalidArgument
from envfleet.fleet.fleet import Fleet
from envfleet.fleet.rollout import Rollout
from envfleet.kernels.rollouts.policies import MLP


@dataclasses.dataclass(frozen=True, eq=False)
class Slab:
    """T steps of N sub-environments, and the E episodes that ended in them.

    Attributes:
        observations: Acted on, `(T, N, …)`.
        last_observations: After the last step, `(N, …)`.
        actions: `(T, N, …)`.
        rewards: float64 `(T, N)`.
        terminated: bool `(T, N)`.
        truncated: bool `(T, N)`.
        is_reset: The step was a reset, which is nothing to learn from, bool `(T, N)`.
        ended_steps: The step in which each episode ended, int64 `(E,)`.
        ended_rows: Its sub-environment, int64 `(E,)`.
        final_observations: Its last observation, `(E, …)`, in every autoreset mode.
        returns: Sum of its rewards, float64 `(E,)`.
        lengths: Its steps, int64 `(E,)`.
    """

    observations: NDArray[Any]
    last_observations: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    is_reset: NDArray[np.bool_]
    ended_steps: NDArray[np.int64]
    ended_rows: NDArray[np.int64]
    final_observations: NDArray[Any]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]

    @classmethod
    def from_rollout(cls, rollout: Rollout) -> Slab:
        """Return the slab of a rollout, whose arrays it shares."""
        ended = rollout.episodes
        return cls(
            rollout.observations, rollout.last_observations, rollout.actions, rollout.rewards, rollout.terminated,
            rollout.truncated, rollout.is_reset, ended.steps, ended.env_indices, ended.observations, ended.returns,
            ended.lengths,
        )  # fmt: skip


class Actor(Protocol):
    """What collects: a policy for batches, and if it can its network for compiled rollouts."""

    def act_batch(self, observations: NDArray[Any], deterministic: bool = False) -> NDArray[Any]:
        """Choose an action for every observation."""
        ...

    def export_policy(self) -> MLP | None:
        """Return the policy as a network that a fused rollout compiles; `None` if it is none."""
        ...

    def draw_seed(self) -> int:
        """Return a seed for the draws of a compiled policy, below 2**32."""
        ...


class SlabWriter:
    """Puts steps of N sub-environments together to slabs.

    Args:
        num_steps: T.
        num_envs: N.
        observation: Of one sub-environment, for its shape and dtype.
        action_space: Of one sub-environment.
    """

    def __init__(
        self, num_steps: int, num_envs: int, observation: NDArray[Any], action_space: spaces.Space[Any]
    ) -> None:
        self._shape, self._observation, self._space = (num_steps, num_envs), observation, action_space
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self._begin()

    def _begin(self) -> None:
        shape, space, whole = self._shape, self._space, np.zeros(0, np.int64)
        self._step = 0
        self._columns: dict[str, NDArray[Any]] = {
            "observations": np.zeros((*shape, *self._observation.shape), self._observation.dtype),
            "actions": np.zeros((*shape, *(space.shape or ())), space.dtype),
            "rewards": np.zeros(shape),
            "terminated": np.zeros(shape, np.bool_),
            "truncated": np.zeros(shape, np.bool_),
            "is_reset": np.ones(shape, np.bool_),
        }
        nothing = np.zeros((0, *self._observation.shape), self._observation.dtype)
        self._ended: list[tuple[NDArray[Any], ...]] = [(whole, whole, nothing, np.zeros(0), whole)]

    def __len__(self) -> int:
        return self._step

    @property
    def is_full(self) -> bool:
        """Return whether T steps were added."""
        return self._step == self._shape[0]

    def add(
        self,
        observations: NDArray[Any],
        actions: NDArray[Any],
        results: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
        happened: Transitions,
    ) -> None:
        """Add a step of all sub-environments.

        Args:
            observations: Acted on, `(N, …)`.
            actions: `(N, …)`.
            results: Rewards, terminated and truncated, `(N,)` each.
            happened: What a `TransitionWriter` made of it.
        """
        step, columns, rows = self._step, self._columns, happened.env_indices
        columns["observations"][step], columns["actions"][step] = observations, actions
        columns["rewards"][step], columns["terminated"][step], columns["truncated"][step] = results
        columns["is_reset"][step, rows] = False
        self._returns[rows] += happened.rewards
        self._lengths[rows] += 1
        rows = rows[happened.ended]
        if len(rows):
            finals = happened.next_observations[happened.ended]
            self._ended.append((np.full(len(rows), step), rows, finals, self._returns[rows], self._lengths[rows]))
            self._returns[rows], self._lengths[rows] = 0.0, 0
        self._step += 1

    def cut(self, last_observations: NDArray[Any]) -> None:
        """End running episodes that nobody will finish, as truncated after their last step.

        Args:
            last_observations: Of all sub-environments after the last step, `(N, …)`.
        """
        if self._step:  # else their last step lies in a slab that was taken
            step, columns = self._step - 1, self._columns
            rows = np.flatnonzero(self._lengths)
            rows = rows[~columns["is_reset"][step, rows]]
            columns["truncated"][step, rows] = True
            finals = np.array(last_observations)[rows]
            self._ended.append((np.full(len(rows), step), rows, finals, self._returns[rows], self._lengths[rows]))
        self._returns[:], self._lengths[:] = 0.0, 0

    def take(self, last_observations: NDArray[Any]) -> Slab:
        """Return the slab of all steps that were added; the next one begins.

        Args:
            last_observations: After the last step, `(N, …)`.
        """
        steps = {name: column[: self._step] for name, column in self._columns.items()}
        names = ("ended_steps", "ended_rows", "final_observations", "returns", "lengths")
        episodes = {
            name: np.concatenate(column) for name, column in zip(names, zip(*self._ended, strict=True), strict=True)
        }
        self._begin()
        return Slab(**steps, last_observations=np.array(last_observations), **episodes)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes: the steps of the slab that is not full yet."""
        columns = {name: column[: self._step].copy() for name, column in self._columns.items()}
        return {
            "columns": columns,
            "ended": [list(columns) for columns in self._ended],
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another was."""
        self._begin()
        self._step = len(state["columns"]["rewards"])
        for name, column in state["columns"].items():
            self._columns[name][: self._step] = as_array(column)
        self._ended = [tuple(as_array(column) for column in columns) for columns in state["ended"]]
        self._returns, self._lengths = as_array(state["returns"]), as_array(state["lengths"])


class Collector:
    """Plays a fleet slab by slab; episodes go on from one slab to the next.

    A fleet with compiled rollouts (of kernels on the CPU) is played in one compiled call per slab.

    Args:
        fleet: A fleet that resets where episodes end; other vector environments become one by `envfleet.adopt`.
        num_steps: T.
        seed: Of the first reset.

    Raises:
        InvalidArgument: `num_steps` is below 1, the fleet is none or does not reset, or its arrays live on a device.
    """

    def __init__(self, fleet: Fleet, num_steps: int, *, seed: int | None = None) -> None:
        if num_steps < 1:
            raise InvalidArgument(f"num_steps={num_steps}: pass the number of steps per slab, at least 1")
        if not isinstance(fleet, Fleet):
            raise InvalidArgument(
                f"the fleet is a {type(fleet).__name__}, expected a Fleet: call envfleet.adopt() first"
            )
        if fleet.autoreset_mode is AutoresetMode.DISABLED:
            raise InvalidArgument("autoreset_mode=DISABLED, expected NEXT_STEP or SAME_STEP: make the fleet with one")
        if fleet.device != "cpu":
            raise InvalidArgument(
                f"the fleet's arrays live on {fleet.device!r}, expected 'cpu': make it without device"
            )
        self._fleet, self._num_steps = fleet, num_steps
        self._rollout: Rollout | None = None
        fleet.reset(seed=seed)

    def collect(self, agent: Actor) -> Slab:
        """Play T steps.

        Returns:
            The slab. Arrays of a compiled rollout are written again by the next call.
        """
        fleet, num_steps = self._fleet, self._num_steps
        policy = agent.export_policy() if fleet.engine.traits.has_rollouts else None
        if policy is None:
            return Slab.from_rollout(fleet.rollout(agent.act_batch, num_steps))
        self._rollout = fleet.rollout(policy, num_steps, seed=agent.draw_seed(), out=self._rollout)
        return Slab.from_rollout(self._rollout)
