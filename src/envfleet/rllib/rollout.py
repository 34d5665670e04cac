"""Rollouts that a packed EnvRunner passes to the Learners instead of episodes: T steps of N sub-environments."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tree
from gymnasium import Space
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

_OF_EVERY_STEP = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)


@dataclasses.dataclass(frozen=True, eq=False)
class PackedRollout:
    """T steps of N sub-environments, with the interface that RLlib expects of an episode.

    It has a length, counts steps, and can be sliced for several Learners. A slice ends between sub-environments, or
    within one by masking: both parts then keep its whole trajectory, so that advantages do not depend on the slice.

    Attributes:
        columns: Arrays `(T, N, …)` under RLlib's names: `obs` (input of the module) and `actions` (its output), nested
            as their spaces are, `rewards` (float32), `terminateds` and `truncateds` (bool), and further outputs of
            module and connectors, such as `action_logp`.
        valid: Steps that are samples to train on, bool `(T, N)`.
        last_observations: Observations after the last step, `(N, …)`.
        cut_steps: Steps of truncations whose last observation is not in `columns` (`SAME_STEP`), int64 `(K,)`.
        cut_rows: Sub-environments of these truncations, int64 `(K,)`.
        final_observations: Last observations of these episodes, `(K, …)`.
    """

    columns: dict[str, Any]
    valid: NDArray[np.bool_]
    last_observations: Any
    cut_steps: NDArray[np.int64]
    cut_rows: NDArray[np.int64]
    final_observations: Any
    is_numpy: bool = True

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
        num_steps, num_envs = self.valid.shape
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
        valid = np.zeros((num_envs, num_steps), np.bool_)
        valid.reshape(-1)[chosen] = True
        kept = (self.cut_rows >= first) & (self.cut_rows < stop)
        return PackedRollout(
            columns=tree.map_structure(lambda column: column[:, first:stop], self.columns),
            valid=valid.T[:, first:stop],
            last_observations=tree.map_structure(lambda column: column[first:stop], self.last_observations),
            cut_steps=self.cut_steps[kept],
            cut_rows=self.cut_rows[kept] - first,
            final_observations=tree.map_structure(lambda column: column[kept], self.final_observations),
        )

    def to_episodes(self, observation_space: Space[Any], action_space: Space[Any]) -> list[SingleAgentEpisode]:
        """Convert to RLlib's episodes, exactly but slowly: for inspection and comparison.

        The last observation of a terminated episode is not recorded; the one before is repeated.

        Args:
            observation_space: Space of the module's observations of one sub-environment.
            action_space: Space of one sub-environment's actions.
        """
        observations, actions, rewards, terminated, truncated = (self.columns[name] for name in _OF_EVERY_STEP)
        extras = {name: column for name, column in self.columns.items() if name not in _OF_EVERY_STEP}

        def following(column: NDArray[Any], last: NDArray[Any], finals: NDArray[Any]) -> NDArray[Any]:
            shifted = np.concatenate([column[1:], last[None]])
            shifted[terminated] = column[terminated]
            shifted[self.cut_steps, self.cut_rows] = finals
            return shifted

        next_observations = tree.map_structure(following, observations, self.last_observations, self.final_observations)
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
                    reward=float(rewards[place]),
                    terminated=bool(terminated[place]),
                    truncated=bool(truncated[place]),
                    extra_model_outputs=_item(extras, place),
                )
                if episode.is_done:
                    episode = None
        return [episode.to_numpy() for episode in episodes]


def _item(columns: Any, place: tuple[int, int]) -> Any:
    return tree.map_structure(lambda column: column[place], columns)
