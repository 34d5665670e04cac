"""Episodes of one step, with values of closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from envfleet.agents import Transitions

SPACE = spaces.Box(-1, 1, (2,), np.float32)
UNIT = spaces.Box(-1, 1, (1,), np.float32)
SMALL: dict[str, Any] = {
    "hidden": (32,), "batch_size": 32, "warmup": 0, "capacity": 500, "learning_rate": 3e-3, "target_tau": 0.05,
    "gamma": 0.5,
}  # fmt: skip


def fill(agent: Any, actions: Any, rewards: Any) -> None:
    """Episodes of one step: where the observation is (1, 0) they terminate, where it is (0, 1) they are truncated."""
    for number in range(400 // len(rewards)):
        kinds = (np.arange(len(rewards)) + number) % 2
        observations = np.eye(2, dtype=np.float32)[kinds]
        agent.remember(
            Transitions(observations, actions, rewards, kinds == 0, kinds == 1, observations, np.arange(len(rewards)))
        )
