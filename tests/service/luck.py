"""An environment of mere luck, which every attempt to choose among episodes would show."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

LUCK = "Luck-v0"
PENALTY = 2.0
"""The most that leaving an episode can save."""


class Luck(gym.Env[Any, Any]):
    """The return is a number from -1 to 1 that the first observation shows; lucky episodes end sooner."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._luck = float(self.np_random.uniform(-1.0, 1.0))
        self._left = 2 if self._luck > 0 else 5
        return np.array([self._luck], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        is_over = self._left == 0
        return np.zeros(1, np.float32), self._luck if is_over else 0.0, is_over, False, {}


def register() -> None:
    """Register the environment, if it is not yet."""
    if LUCK not in gym.registry:
        gym.register(LUCK, "tests.service.luck:Luck", disable_env_checker=True)
