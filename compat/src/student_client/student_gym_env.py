"""The single environment of the turbofan's student client: one engine of a service."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.errors import ResetNeeded
from student_client.student_gym_env_vectorized import NUM_SENSORS, StudentGymEnvVectorized


class StudentGymEnv(gym.Env[NDArray[np.float32], int]):
    """One engine of a service, as a Gymnasium environment.

    Steps return the rows of the block, `(flights, 9)`, or the last with `return_all_states=False`; a reset returns one
    row. Arguments are those of `StudentGymEnvVectorized`, without `num_envs`.
    """

    def __init__(
        self,
        server_url: str | None = None,
        user_token: str | None = None,
        env_type: str | None = None,
        **options: Any,
    ) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (NUM_SENSORS,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._envs = StudentGymEnvVectorized(server_url, user_token, env_type, 1, **options)
        self.session_id, self._total = self._envs.session_id, 0.0

    @property
    def episode_id(self) -> str:
        """The service's id of the episode."""
        return self._envs.episode_ids[0]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Take a new engine.

        Raises:
            ResetNeeded: The service refused, as when a ranked attempt is over.
        """
        super().reset(seed=seed)
        observations, infos = self._envs.reset(seed=seed)
        if not self._envs.get_active_count():
            raise ResetNeeded(f"reset(): {infos[0].get('error', 'the service gave no observation')}")
        self._total = 0.0
        return observations[0], {**infos[0], "episode_id": self.episode_id}

    def step(
        self, action: int, step_size: int | None = None, return_all_states: bool | None = None
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Decide: 0 flies, 1 repairs, 2 sells.

        Raises:
            ResetNeeded: The episode has ended.
        """
        if not self._envs.get_active_count():
            raise ResetNeeded("step() after the end of the episode: call reset() first")
        result = self._envs.step(np.array([int(action)]), step_size, return_all_states)
        observations, rewards, terminated, truncated, infos = result
        self._total += float(rewards[0])
        info = {**infos[0], "total_reward": self._total}
        return observations[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), info

    def close(self) -> None:
        """Drop the connection."""
        self._envs.close()


create_student_gym_env = StudentGymEnv
