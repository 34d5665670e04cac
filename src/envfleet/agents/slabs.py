"""Slabs: T steps of N sub-environments for an agent that learns from what it just did."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.agents.transitions import TransitionWriter
from envfleet.errors import InvalidArgument
from envfleet.kernels.fleet import KernelFleet
from envfleet.kernels.rollouts.policies import MLP
from envfleet.kernels.rollouts.rollout import Rollout


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
        """The slab of a fused rollout; its arrays are the rollout's."""
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

    def export_policy(self) -> MLP:
        """The policy as a network that a fused rollout compiles."""
        ...

    def draw_seed(self) -> int:
        """A seed for the draws of a compiled policy, below 2**32."""
        ...


class Collector:
    """Plays a fleet slab by slab; episodes go on from one slab to the next.

    A fleet of kernels is played in one compiled call per slab (unless its mode is `DISABLED`), any other step by step.

    Args:
        fleet: Any vector environment of Gymnasium's; resets it has to do are done, in `DISABLED` as well.
        num_steps: T.
        seed: Of the first reset.

    Raises:
        InvalidArgument: `num_steps` is below 1.
    """

    def __init__(self, fleet: VectorEnv[Any, Any, Any], num_steps: int, *, seed: int | None = None) -> None:
        if num_steps < 1:
            raise InvalidArgument(f"num_steps={num_steps}: pass the number of steps per slab, at least 1")
        self._fleet, self._num_steps = fleet, num_steps
        self._mode = AutoresetMode(fleet.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._rollout: Rollout | None = None
        observations, _ = fleet.reset(seed=seed)
        self._current = np.array(observations)
        self._writer = TransitionWriter(fleet.num_envs, self._mode)
        self._writer.reset(self._current)
        self._returns, self._lengths = np.zeros(fleet.num_envs), np.zeros(fleet.num_envs, np.int64)

    def collect(self, agent: Actor) -> Slab:
        """Play T steps.

        Returns:
            The slab. Of a fleet of kernels its arrays are written again by the next call.
        """
        fleet = self._fleet
        if isinstance(fleet, KernelFleet) and fleet.device == "cpu" and self._mode is not AutoresetMode.DISABLED:
            self._rollout = fleet.rollout(
                agent.export_policy(), self._num_steps, seed=agent.draw_seed(), out=self._rollout
            )
            return Slab.from_rollout(self._rollout)
        return self._step_through(agent)

    def _step_through(self, agent: Actor) -> Slab:
        shape = (self._num_steps, self._fleet.num_envs)
        space = self._fleet.single_action_space
        observations = np.empty((*shape, *self._current.shape[1:]), self._current.dtype)
        actions = np.empty((*shape, *(space.shape or ())), space.dtype)
        rewards = np.zeros(shape)
        terminated, truncated, is_reset = (np.zeros(shape, np.bool_) for _ in range(3))
        ended: list[tuple[NDArray[Any], ...]] = [self._no_episodes()]
        for step in range(self._num_steps):
            observations[step] = self._current
            actions[step] = agent.act_batch(self._current)
            results = self._fleet.step(actions[step])
            _, rewards[step], terminated[step], truncated[step], _ = results
            happened = self._writer.step(actions[step], *results)
            is_reset[step] = True
            is_reset[step, happened.env_indices] = False
            self._returns[happened.env_indices] += happened.rewards
            self._lengths[happened.env_indices] += 1
            self._current = np.array(results[0])
            rows = happened.env_indices[happened.ended]
            if len(rows):
                finals = happened.next_observations[happened.ended]
                ended.append((np.full(len(rows), step), rows, finals, self._returns[rows], self._lengths[rows]))
                self._returns[rows], self._lengths[rows] = 0.0, 0
                self._reset(rows)
        episodes = (np.concatenate(column) for column in zip(*ended, strict=True))
        return Slab(
            observations, self._current.copy(), actions, rewards, terminated, truncated, is_reset, *episodes
        )  # fmt: skip

    def _reset(self, rows: NDArray[np.int64]) -> None:
        """Reset sub-environments if nobody else does."""
        if self._mode is AutoresetMode.DISABLED:
            mask = np.zeros(self._fleet.num_envs, np.bool_)
            mask[rows] = True
            observations, _ = self._fleet.reset(options={"reset_mask": mask})
            self._current = np.array(observations)
            self._writer.reset(self._current[rows], rows)

    def _no_episodes(self) -> tuple[NDArray[Any], ...]:
        whole = np.zeros(0, np.int64)
        return whole, whole, np.zeros((0, *self._current.shape[1:]), self._current.dtype), np.zeros(0), whole
