"""Rollouts, which a packed EnvRunner hands to the Learners in place of episodes: T steps of N sub-environments."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tree
from gymnasium import Space
from numpy.typing import NDArray
from ray.rllib.env.single_agent_episode import SingleAgentEpisode


@dataclasses.dataclass(frozen=True, eq=False)
class PackedRollout:
    """T steps of N sub-environments, in the place where RLlib expects an episode.

    To RLlib it has a length, counts steps, and can be cut for several Learners. It is cut between sub-environments, or
    within one by masking: either part keeps the whole trajectory, so that advantages do not depend on the cut.

    Attributes:
        observations: What the module saw, `(T, N, …)`; nested as the space is.
        actions: What it chose, `(T, N, …)`; nested as its space is.
        extras: What else came out of module and connectors, such as `action_logp`, `(T, N, …)` each.
        rewards: float32 `(T, N)`.
        terminated: bool `(T, N)`.
        truncated: bool `(T, N)`.
        valid: What may be learned from, bool `(T, N)`.
        last_observations: After the last step, `(N, …)`.
        cut_steps: The steps of truncations whose last observation the environment hides, int64 `(K,)`.
        cut_rows: Their sub-environments, int64 `(K,)`.
        final_observations: Those last observations, `(K, …)`.
    """

    observations: Any
    actions: Any
    extras: dict[str, NDArray[Any]]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    last_observations: Any
    cut_steps: NDArray[np.int64]
    cut_rows: NDArray[np.int64]
    final_observations: Any
    is_numpy: bool = True

    def __len__(self) -> int:
        return int(np.count_nonzero(self.valid))

    def env_steps(self) -> int:
        """Samples."""
        return len(self)

    def agent_steps(self) -> int:
        """Samples; there is one agent."""
        return len(self)

    @property
    def shape(self) -> tuple[int, int]:
        """T and N."""
        num_steps, num_envs = self.rewards.shape
        return num_steps, num_envs

    def __getitem__(self, samples: slice) -> PackedRollout:
        return self.slice(samples)

    def slice(self, samples: slice, *, len_lookback_buffer: int | None = None) -> PackedRollout:
        """Take some samples, counted along one sub-environment after the other.

        Args:
            samples: Which, with step 1.
            len_lookback_buffer: RLlib's; nothing looks back.
        """
        num_steps = len(self.rewards)
        chosen = np.flatnonzero(self.valid.T)[samples]  # (T, N) -> (N * T,)
        first, stop = (chosen[0] // num_steps, chosen[-1] // num_steps + 1) if len(chosen) else (0, 0)
        valid = np.zeros((self.valid.shape[1], num_steps), np.bool_)
        valid.reshape(-1)[chosen] = True
        columns = slice(first, stop)
        kept = (self.cut_rows >= first) & (self.cut_rows < stop)
        return dataclasses.replace(
            self,
            observations=tree.map_structure(lambda column: column[:, columns], self.observations),
            actions=tree.map_structure(lambda column: column[:, columns], self.actions),
            extras={name: column[:, columns] for name, column in self.extras.items()},
            rewards=self.rewards[:, columns],
            terminated=self.terminated[:, columns],
            truncated=self.truncated[:, columns],
            valid=valid.T[:, columns],
            last_observations=tree.map_structure(lambda column: column[columns], self.last_observations),
            cut_steps=self.cut_steps[kept],
            cut_rows=self.cut_rows[kept] - first,
            final_observations=tree.map_structure(lambda column: column[kept], self.final_observations),
        )

    def to_episodes(self, observation_space: Space[Any], action_space: Space[Any]) -> list[SingleAgentEpisode]:
        """Convert to RLlib's episodes, exactly and slowly: to look at, and to compare with.

        The last observation of an episode that terminated is not kept; the one before takes its place.

        Args:
            observation_space: What the module sees of one sub-environment.
            action_space: Of one sub-environment.
        """
        finals = {(step, row): k for k, (step, row) in enumerate(zip(self.cut_steps, self.cut_rows, strict=True))}
        episodes = []
        for row in range(self.rewards.shape[1]):
            episode: SingleAgentEpisode | None = None
            for step in np.flatnonzero(self.valid[:, row]).tolist():
                if episode is None:
                    episode = SingleAgentEpisode(observation_space=observation_space, action_space=action_space)
                    episode.add_env_reset(_item(self.observations, step, row))
                    episodes.append(episode)
                episode.add_env_step(
                    observation=self._after(step, row, finals),
                    action=_item(self.actions, step, row),
                    reward=float(self.rewards[step, row]),
                    terminated=bool(self.terminated[step, row]),
                    truncated=bool(self.truncated[step, row]),
                    extra_model_outputs={name: column[step, row] for name, column in self.extras.items()},
                )
                if episode.is_done:
                    episode = None
        return [episode.to_numpy() for episode in episodes]

    def _after(self, step: int, row: int, finals: dict[tuple[int, int], int]) -> Any:
        """Return the observation that a step led to."""
        if (step, row) in finals:
            return tree.map_structure(lambda column: column[finals[step, row]], self.final_observations)
        if self.terminated[step, row]:
            return _item(self.observations, step, row)
        if step + 1 < len(self.rewards):
            return _item(self.observations, step + 1, row)
        return tree.map_structure(lambda column: column[row], self.last_observations)


def _item(columns: Any, step: int, row: int) -> Any:
    return tree.map_structure(lambda column: column[step, row], columns)
