"""Rollouts for agents that learn from what they just did: recorded from transitions, or played by a fleet."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.agents.agent import RolloutAgent
from envfleet.agents.transitions import Transitions
from envfleet.errors import InvalidArgument
from envfleet.fleet.episodes import EndedEpisodes, EpisodeStats
from envfleet.fleet.fleet import Fleet
from envfleet.fleet.rollout import Rollout, RolloutEpisodes
from envfleet.fleet.rollout_recorder import RolloutRecorder


class TransitionRecorder:
    """Recorder of transitions of N sub-environments as rollouts of T steps.

    Transitions already lead to the last observation of an episode, so a new episode begins with the next transition, as
    in `SAME_STEP`.

    Args:
        num_steps: T.
        num_envs: N.
        observation_space: Packed space of one sub-environment's observations.
        action_space: Space of one sub-environment's actions.
    """

    def __init__(
        self, num_steps: int, num_envs: int, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
    ) -> None:
        self._num_steps, self._action_dtype = num_steps, action_space.dtype
        self._recorder = RolloutRecorder(num_steps, num_envs)
        self._last = np.zeros((num_envs, *(observation_space.shape or ())), observation_space.dtype)
        self._episodes = EpisodeStats(num_envs, AutoresetMode.SAME_STEP)
        self._episodes.begin()

    def __len__(self) -> int:
        return self._recorder.num_steps

    @property
    def is_full(self) -> bool:
        """True once T steps are recorded."""
        return len(self) == self._num_steps

    def add(self, transitions: Transitions) -> None:
        """Record a step: at most one transition of each sub-environment."""
        rows, flags = transitions.env_indices, np.array((transitions.terminated, transitions.truncated))
        self._recorder.begin(np.asarray(transitions.observations, self._last.dtype), rows)
        actions = np.asarray(transitions.actions, self._action_dtype)
        columns = {"actions": actions, "rewards": transitions.rewards, "terminated": flags[0], "truncated": flags[1]}
        self._recorder.end(columns, rows)
        self._last[rows] = transitions.next_observations
        if self._episodes.on_step(transitions.rewards, flags, rows) is not None:
            episodes = self._episodes.ended_episodes()
            self._end(episodes._replace(rows=rows[episodes.rows]))

    def cut(self, env_indices: NDArray[np.int64]) -> None:
        """End the running episodes of some sub-environments, as truncated after their last step."""
        rows, status = self._recorder.truncate(env_indices), self._episodes.status()
        if len(rows):
            self._end(
                EndedEpisodes(rows, status.returns[rows], status.lengths[rows], np.zeros(len(rows)), status.ids[rows])
            )
        self._episodes.begin(env_indices[status.lengths[env_indices] > 0].tolist())

    def _end(self, episodes: EndedEpisodes) -> None:
        self._recorder.end_episodes(episodes, self._last[episodes.rows])

    def take(self) -> Rollout:
        """Return the rollout of all steps that were recorded, at least one; the next one begins."""
        return self._recorder.take(self._last)


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
