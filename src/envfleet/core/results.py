"""Take what a single sub-environment returns, as strictly as a group does, where there is none."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from envfleet.core.checks import explain_result, read_reset
from envfleet.core.infos import own_info
from envfleet.core.layout import SpaceLayout


class Taker:
    """Takes the results of one sub-environment into arrays of its own, and says what does not fit there.

    Args:
        observation_space: The sub-environment's.
    """

    def __init__(self, observation_space: gym.Space[Any]) -> None:
        layout = SpaceLayout(observation_space)
        arrays = [np.zeros((1, *leaf.shape), leaf.dtype) for leaf in layout.leaves]
        self._write = layout.writer(arrays, [[None] for _ in range(layout.num_objects)])
        rewards: Any = np.zeros(1)  # numpy does not type its arrays as buffers
        self._rewards = memoryview(rewards)

    def take_reset(self, result: Any) -> None:
        """Take what `reset` returned.

        Raises:
            EnvfleetError: It is not an observation of the space and a dict.
        """
        observation, _ = read_reset(result)
        self._write(0, observation)

    def take_step(self, result: Any) -> None:
        """Take what `step` returned.

        Raises:
            EnvfleetError: It is not what an environment returns, or an observation that is not of the space.
        """
        try:
            observation, reward, terminated, truncated, info = result
            self._write(0, observation)
            self._rewards[0] = reward
            bool(terminated or truncated)
            if info:
                own_info(info)
        except Exception as error:  # noqa: BLE001 - raised again below, explained
            found = error
        else:
            return
        raise explain_result(found, result)
