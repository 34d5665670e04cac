"""Rollouts for agents that learn from what they just did: recorded from transitions, or played by a fleet."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.agents.agent import RolloutAgent
from envfleet.agents.transitions import Transitions
from envfleet.errors import InvalidArgument
from envfleet.fleet.fleet import Fleet
from envfleet.fleet.rollout import Rollout, RolloutEpisodes

_OF_TRANSITIONS = ("actions", "rewards", "terminated", "truncated")


class RolloutRecorder:
    """Records transitions of N sub-environments as rollouts of T steps.

    A sub-environment without a transition in a step counts as one that was reset: its observation is that of another
    row, since zeros may lie outside of the space.

    Args:
        num_steps: T.
        num_envs: N.
        observation_space: Packed space of one sub-environment's observations.
        action_space: Space of one sub-environment's actions.
    """

    def __init__(
        self, num_steps: int, num_envs: int, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
    ) -> None:
        self._shape, self._action_space = (num_steps, num_envs), action_space
        self._last = np.zeros((num_envs, *(observation_space.shape or ())), observation_space.dtype)
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self._ids = np.arange(num_envs)
        self._begin()

    def _begin(self) -> None:
        shape, space = self._shape, self._action_space
        self._step = 0
        self._observations = np.zeros((shape[0] + 1, *self._last.shape), self._last.dtype)
        self._columns: dict[str, NDArray[Any]] = {
            "actions": np.zeros((*shape, *(space.shape or ())), space.dtype),
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
        """True once T steps are recorded."""
        return self._step == self._shape[0]

    def add(self, transitions: Transitions) -> None:
        """Record a step: at most one transition of each sub-environment."""
        rows = transitions.env_indices
        self._observations[self._step, rows] = transitions.observations
        for name in _OF_TRANSITIONS:
            self._columns[name][self._step, rows] = getattr(transitions, name)
        self._columns["is_reset"][self._step, rows] = False
        self._last[rows] = transitions.next_observations
        self._returns[rows] += transitions.rewards
        self._lengths[rows] += 1
        self._step += 1
        self._end(rows[transitions.ended])

    def cut(self, env_indices: NDArray[np.int64]) -> None:
        """End the running episodes of some sub-environments, as truncated after their last step."""
        if self._step:  # else their last step lies in a rollout that was taken
            flags = [self._columns[name][self._step - 1] for name in ("terminated", "is_reset", "truncated")]
            rows = env_indices[~np.any(flags, axis=0)[env_indices]]
            flags[2][rows] = True
            self._end(rows)
        self._begin_episodes(env_indices)

    def _end(self, rows: NDArray[np.int64]) -> None:
        """Record the episodes that ended in the last step."""
        totals = self._returns[rows], self._lengths[rows], self._ids[rows]
        self._ended.append((np.full(len(rows), self._step - 1), rows, *totals, self._last[rows]))
        self._begin_episodes(rows)

    def _begin_episodes(self, rows: NDArray[np.int64]) -> None:
        rows = rows[self._lengths[rows] > 0]
        self._returns[rows], self._lengths[rows] = 0.0, 0
        self._ids[rows] += self._shape[1]

    def take(self) -> Rollout:
        """Return the rollout of all steps that were recorded, at least one; the next one begins."""
        columns = {name: column[: self._step] for name, column in self._columns.items()}
        observations, is_reset = self._observations[: self._step + 1], columns["is_reset"]
        observations[-1] = self._last
        if is_reset.any() and not is_reset.all():
            filler = observations[np.unravel_index(is_reset.argmin(), is_reset.shape)]
            observations[:-1][is_reset], observations[-1][is_reset[-1]] = filler, filler
        steps, rows, returns, lengths, ids, finals = map(np.concatenate, zip(*self._ended, strict=True))
        episodes = RolloutEpisodes(steps, rows, returns, lengths, ids, finals, {})
        self._begin()
        return Rollout(observations, **columns, infos={}, gather=lambda: episodes)


class Collector:
    """Collector of rollouts of a fleet; episodes continue from one rollout to the next.

    If the fleet has compiled rollouts (kernels on the CPU), a rollout is one compiled call.

    Args:
        fleet: Fleet with autoreset; `envfleet.adopt` makes one of another vector environment.
        num_steps: T.
        seed: Seed of the first reset.

    Attributes:
        episodes: Episodes that ended in the last rollout, with returns and lengths.

    Raises:
        InvalidArgument: `fleet` is not a `Fleet`, or its arrays are on a GPU.
    """

    def __init__(self, fleet: Fleet, num_steps: int, *, seed: int | None = None) -> None:
        if not isinstance(fleet, Fleet):
            raise InvalidArgument(f"fleet is a {type(fleet).__name__}, expected a Fleet: call envfleet.adopt() first")
        if fleet.device != "cpu":
            raise InvalidArgument(
                f"the fleet's arrays live on {fleet.device!r}, expected 'cpu': make it without device"
            )
        fleet.engine.traits.refuse_vector_rewards("training")
        self._fleet, self._num_steps = fleet, num_steps
        self._rollout: Rollout | None = None
        self.episodes: RolloutEpisodes | None = None
        fleet.reset(seed=seed)

    def collect(self, agent: RolloutAgent[Any]) -> Rollout:
        """Roll out T steps.

        Returns:
            Rollout; arrays of a compiled one are overwritten by the next call.

        Raises:
            InvalidArgument: T is below 1, or the fleet's autoreset is disabled.
        """
        fleet, num_steps = self._fleet, self._num_steps
        policy = agent.export_policy() if fleet.engine.traits.has_rollouts else None
        if policy is None:
            rollout = fleet.rollout(agent.act_batch, num_steps)
        else:
            seed = int(agent.random.numpy.integers(2**32))
            rollout = self._rollout = fleet.rollout(policy, num_steps, seed=seed, out=self._rollout)
        self.episodes = rollout.episodes
        return rollout
