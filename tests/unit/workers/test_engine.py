"""The engine of Python sub-environments, which joins the results of its workers."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym

import envfleet


class Named(gym.Env[str, int]):
    """Observes the process it lives in, as text, which travels as an object."""

    observation_space = gym.spaces.Text(20, charset="0123456789")
    action_space: Any = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return str(os.getpid()), {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return str(os.getpid()), 1.0, True, False, {}


def test_objects_come_from_the_worker_that_took_anothers_place() -> None:
    with envfleet.make(Named, 1, backend="process", workers=1, recycle_episodes=1) as fleet:
        before = fleet.reset(seed=0)[0]
        assert fleet.step([0])[0] == before  # the episode ends
        after = fleet.step([0])[0]
        assert after == (str(fleet.stats().workers[0].pid),)
        assert after != before
