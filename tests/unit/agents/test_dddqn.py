"""DDDQN against closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tests.unit.agents.bandit import SMALL, SPACE, fill

from envfleet.agents import DDDQN, DDDQNConfig


@pytest.mark.parametrize(
    "options", [{}, {"prioritized": True}, {"num_steps": 3}], ids=["plain", "by priority", "n steps"]
)
def test_action_values_of_terminated_and_of_truncated_episodes(options: dict[str, Any]) -> None:
    agent = DDDQN(SPACE, spaces.Discrete(2), DDDQNConfig(**SMALL, **options), num_envs=4, seed=0)
    fill(agent, np.array([0, 0, 1, 1]), np.array([1.0, 1.0, 2.0, 2.0]))
    agent.update(600)
    with torch.no_grad():
        terminated, truncated = agent._network(torch.eye(2)).tolist()
    assert terminated == pytest.approx([1.0, 2.0], abs=0.1)
    assert truncated == pytest.approx([3.0, 4.0], abs=0.15)  # 1 or 2, and half of the best: 2 / (1 - 0.5)
