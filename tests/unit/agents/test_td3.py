"""TD3 against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.agents.bandit import SMALL, SPACE, UNIT, fill

from envfleet.agents import TD3, TD3Config


def test_a_deterministic_policy_finds_the_best_action() -> None:
    agent = TD3(SPACE, UNIT, TD3Config(**SMALL, target_noise=0.0), num_envs=20, seed=0)
    actions = np.linspace(-1, 1, 20, dtype=np.float32)[:, None]
    fill(agent, actions, 1.0 - (actions[:, 0] - 0.4) ** 2)
    agent.update(1500)
    best = agent.act_batch(np.eye(2, dtype=np.float32), deterministic=True)
    assert best[:, 0].tolist() == pytest.approx([0.4, 0.4], abs=0.12)
    with torch.no_grad():
        values = agent._critics(torch.eye(2), torch.from_numpy(best)).mean(dim=0)
    assert values.tolist() == pytest.approx([1.0, 2.0], abs=0.15)


def test_a_penalty_keeps_a_deterministic_policy_off_the_bounds() -> None:
    """With an unbounded gradient, actions saturate where the tanh is flat, as most of TD3's did on hockey."""
    best_actions = []
    for penalty in (0.0, 0.1):
        agent = TD3(SPACE, UNIT, TD3Config(**SMALL, saturation_penalty=penalty), seed=0)
        actions = np.random.default_rng(0).uniform(-1, 1, (400, 1))
        fill(agent, actions, actions[:, 0])
        agent.update(300)
        best_actions.append(float(agent.act(np.zeros(2, np.float32), deterministic=True)[0]))
    assert best_actions[0] > 0.95
    assert 0.5 < best_actions[1] < 0.9
