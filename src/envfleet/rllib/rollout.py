"""Rollouts that a packed EnvRunner passes to the Learners instead of episodes: T steps of N sub-environments."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import tree
from gymnasium import Space
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from envfleet.fleet.rollout import Rollout, RolloutEpisodes


@dataclasses.dataclass(frozen=True, eq=False)
class PackedRollout:
    """View of a rollout with the interface that RLlib expects of an episode.

    It has a length, counts steps, and can be sliced for several Learners. A slice ends between sub-environments, or
    within one by masking: both parts then keep its whole trajectory, so that advantages do not depend on the slice.

    Attributes:
        rollout: The rollout. Observations are the module's inputs and actions its outputs, `outputs` are its further
            ones under RLlib's names, such as `action_logp`. Steps that are not samples are marked in `is_reset`. Where
            an episode terminates, the last observation is not recorded: `episodes` repeat the one before.
        hides_ends: True if last observations are only in `rollout.episodes` (`SAME_STEP`).
    """

    rollout: Rollout
    hides_ends: bool
    is_numpy: bool = True

    @property
    def columns(self) -> dict[str, Any]:
        """Arrays `(T, N, …)` under RLlib's names; all but `rewards` (float32) are views."""
        rollout = self.rollout
        return {
            Columns.OBS: rollout.observations,
            Columns.ACTIONS: rollout.actions,
            **rollout.outputs,
            Columns.REWARDS: rollout.rewards.astype(np.float32),
            Columns.TERMINATEDS: rollout.terminated,
            Columns.TRUNCATEDS: rollout.truncated,
        }

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Steps that are samples to train on, bool `(T, N)`."""
        return ~self.rollout.is_reset

    @property
    def last_observations(self) -> Any:
        """Observations after the last step, `(N, …)`."""
        return self.rollout.last_observations

    @functools.cached_property
    def cut_episodes(self) -> RolloutEpisodes:
        """Truncated episodes with last observations that are not in `columns`."""
        episodes = self.rollout.episodes
        is_cut = ~self.rollout.terminated[episodes.steps, episodes.env_indices] & self.hides_ends
        return episodes.select(is_cut)

    def __len__(self) -> int:
        return int(np.count_nonzero(self.valid))

    def env_steps(self) -> int:
        """Return the number of samples."""
        return len(self)

    def agent_steps(self) -> int:
        """Return the number of samples; there is one agent."""
        return len(self)

    @property
    def shape(self) -> tuple[int, int]:
        """T and N."""
        num_steps, num_envs = self.rollout.is_reset.shape
        return num_steps, num_envs

    def __getitem__(self, samples: slice) -> PackedRollout:
        return self.slice(samples)

    def slice(self, samples: slice, *, len_lookback_buffer: int | None = None) -> PackedRollout:
        """Return some of the samples, counted along one sub-environment after the other.

        Args:
            samples: Range of samples, with step 1.
            len_lookback_buffer: Ignored; an argument of RLlib's episodes.
        """
        num_steps, num_envs = self.shape
        chosen = np.flatnonzero(self.valid.T)[samples]  # (T, N) -> (N * T,)
        first, stop = (chosen[0] // num_steps, chosen[-1] // num_steps + 1) if len(chosen) else (0, 0)
        is_reset = np.ones((num_envs, num_steps), np.bool_)
        is_reset.reshape(-1)[chosen] = False
        part = dataclasses.replace(self.rollout.of_envs(first, stop), is_reset=is_reset.T[:, first:stop])
        return PackedRollout(part, self.hides_ends)

    def to_episodes(self, observation_space: Space[Any], action_space: Space[Any]) -> list[SingleAgentEpisode]:
        """Convert to RLlib's episodes, exactly but slowly: for inspection and comparison.

        The last observation of a terminated episode is not recorded; the one before is repeated.

        Args:
            observation_space: Space of the module's observations of one sub-environment.
            action_space: Space of one sub-environment's actions.
        """
        rollout, cut = self.rollout, self.cut_episodes
        observations, actions, terminated = rollout.observations, rollout.actions, rollout.terminated

        def following(column: NDArray[Any], last: NDArray[Any], finals: NDArray[Any]) -> NDArray[Any]:
            shifted = np.concatenate([column[1:], last[None]])
            shifted[terminated] = column[terminated]
            shifted[cut.steps, cut.env_indices] = finals
            return shifted

        next_observations = tree.map_structure(following, observations, rollout.last_observations, cut.observations)
        episodes = []
        for row in range(self.shape[1]):
            episode: SingleAgentEpisode | None = None
            for place in ((step, row) for step in np.flatnonzero(self.valid[:, row]).tolist()):
                if episode is None:
                    episode = SingleAgentEpisode(observation_space=observation_space, action_space=action_space)
                    episode.add_env_reset(_item(observations, place))
                    episodes.append(episode)
                episode.add_env_step(
                    observation=_item(next_observations, place),
                    action=_item(actions, place),
                    reward=float(np.float32(rollout.rewards[place])),
                    terminated=bool(terminated[place]),
                    truncated=bool(rollout.truncated[place]),
                    extra_model_outputs=_item(rollout.outputs, place),
                )
                if episode.is_done:
                    episode = None
        return [episode.to_numpy() for episode in episodes]


def _item(columns: Any, place: tuple[int, int]) -> Any:
    return tree.map_structure(lambda column: column[place], columns)
