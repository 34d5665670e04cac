"""Slabs: T steps of N sub-environments for an agent that learns from what it just did."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.agents.agent import SlabAgent
from envfleet.agents.transitions import Transitions
from envfleet.errors import InvalidArgument
from envfleet.fleet.fleet import Fleet
from envfleet.fleet.rollout import Rollout, RolloutEpisodes

_STEPS = ("observations", "actions", "rewards", "terminated", "truncated")


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
        is_reset: The step was a reset, which is nothing to learn from, bool `(T, N)`. Its observation can be that of
            another step.
        ended_steps: The step in which each episode ended, int64 `(E,)`.
        ended_rows: Its sub-environment, int64 `(E,)`.
        final_observations: Its last observation, `(E, …)`, in every autoreset mode.
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

    @classmethod
    def from_rollout(cls, rollout: Rollout) -> Slab:
        """Return the slab of a rollout, whose arrays it shares."""
        steps = {name: getattr(rollout, name) for name in (*_STEPS, "is_reset", "last_observations")}
        ended = rollout.episodes
        return cls(
            **steps, ended_steps=ended.steps, ended_rows=ended.env_indices, final_observations=ended.observations
        )


class SlabWriter:
    """Puts the transitions of N sub-environments together to slabs.

    Args:
        num_steps: T.
        num_envs: N.
        observation_space: Of one sub-environment, packed.
        action_space: Of one sub-environment.
    """

    def __init__(
        self, num_steps: int, num_envs: int, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
    ) -> None:
        self._shape, self._action_space = (num_steps, num_envs), action_space
        self._last = np.zeros((num_envs, *(observation_space.shape or ())), observation_space.dtype)
        self._begin()

    def _begin(self) -> None:
        shape, space = self._shape, self._action_space
        observations, actions = (*shape, *self._last.shape[1:]), (*shape, *(space.shape or ()))
        self._step = 0
        self._columns: dict[str, NDArray[Any]] = {
            "observations": np.zeros(observations, self._last.dtype),
            "actions": np.zeros(actions, space.dtype),
            "rewards": np.zeros(shape),
            "terminated": np.zeros(shape, np.bool_),
            "truncated": np.zeros(shape, np.bool_),
            "is_reset": np.ones(shape, np.bool_),
        }
        self._ended: list[tuple[NDArray[Any], ...]] = []

    def __len__(self) -> int:
        return self._step

    @property
    def is_full(self) -> bool:
        """Return whether T steps were added."""
        return self._step == self._shape[0]

    def add(self, transitions: Transitions) -> None:
        """Add a step: at most one transition of each sub-environment; that of others counts as a reset."""
        rows = transitions.env_indices
        for name in _STEPS:
            self._columns[name][self._step, rows] = getattr(transitions, name)
        self._columns["is_reset"][self._step, rows] = False
        self._last[rows] = transitions.next_observations
        self._step += 1
        self._end(rows[transitions.ended])

    def cut(self, env_indices: NDArray[np.int64]) -> None:
        """End the running episodes of some sub-environments, as truncated after their last step."""
        if self._step:  # else their last step lies in a slab that was taken
            flags = [self._columns[name][self._step - 1] for name in ("terminated", "is_reset", "truncated")]
            rows = env_indices[~np.any(flags, axis=0)[env_indices]]
            flags[2][rows] = True
            self._end(rows)

    def _end(self, rows: NDArray[np.int64]) -> None:
        """Note the episodes that ended in the last step."""
        self._ended.append((np.full(len(rows), self._step - 1), rows, self._last[rows]))

    def take(self) -> Slab:
        """Return the slab of all steps that were added, at least one; the next one begins."""
        steps = {name: column[: self._step] for name, column in self._columns.items()}
        ended = map(np.concatenate, zip(*self._ended, strict=True))
        ends = dict(zip(("ended_steps", "ended_rows", "final_observations"), ended, strict=True))
        last, is_reset = self._last.copy(), steps["is_reset"]
        if is_reset.any() and not is_reset.all():  # zeros may lie outside of the space, where networks raise
            filler = steps["observations"][np.unravel_index(is_reset.argmin(), is_reset.shape)]
            steps["observations"][is_reset], last[is_reset[-1]] = filler, filler
        self._begin()
        return Slab(**steps, **ends, last_observations=last)


class Collector:
    """Plays a fleet slab by slab; episodes go on from one slab to the next.

    A fleet with compiled rollouts (of kernels on the CPU) is played in one compiled call per slab.

    Args:
        fleet: A fleet that resets where episodes end; other vector environments become one by `envfleet.adopt`.
        num_steps: T.
        seed: Of the first reset.

    Attributes:
        episodes: Those that ended in the last slab, with returns and lengths.

    Raises:
        InvalidArgument: The fleet is none, or its arrays live on a device.
    """

    def __init__(self, fleet: Fleet, num_steps: int, *, seed: int | None = None) -> None:
        if not isinstance(fleet, Fleet):
            raise InvalidArgument(
                f"the fleet is a {type(fleet).__name__}, expected a Fleet: call envfleet.adopt() first"
            )
        if fleet.device != "cpu":
            raise InvalidArgument(
                f"the fleet's arrays live on {fleet.device!r}, expected 'cpu': make it without device"
            )
        fleet.engine.traits.refuse_vector_rewards("training")
        self._fleet, self._num_steps = fleet, num_steps
        self._rollout: Rollout | None = None
        self.episodes: RolloutEpisodes | None = None
        fleet.reset(seed=seed)

    def collect(self, agent: SlabAgent[Any]) -> Slab:
        """Play T steps.

        Returns:
            The slab. Arrays of a compiled rollout are written again by the next call.

        Raises:
            InvalidArgument: T is below 1, or the fleet does not reset itself.
        """
        fleet, num_steps = self._fleet, self._num_steps
        policy = agent.export_policy() if fleet.engine.traits.has_rollouts else None
        if policy is None:
            rollout = fleet.rollout(agent.act_batch, num_steps)
        else:
            seed = int(agent.random.numpy.integers(2**32))
            rollout = self._rollout = fleet.rollout(policy, num_steps, seed=seed, out=self._rollout)
        self.episodes = rollout.episodes
        return Slab.from_rollout(rollout)
