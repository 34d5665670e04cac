"""SAC against closed forms and torch's distributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tests.unit.agents.bandit import SMALL, SPACE, UNIT, fill

from envfleet.agents import SAC, SACConfig
from envfleet.agents.sac import sample_actions, split_outputs


def test_the_density_of_a_squashed_action_is_torchs() -> None:
    agent = SAC(SPACE, spaces.Box(-1, 1, (3,), np.float32), SACConfig(hidden=(8,), capacity=1), seed=0)
    inputs = torch.randn(100, 2)
    actions, actual = agent._sample_actions(inputs)
    means, log_stds = split_outputs(agent._actor(inputs))
    transforms: list[torch.distributions.Transform] = [torch.distributions.TanhTransform()]
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(means.double(), log_stds.double().exp()), transforms
    )
    is_inside = (actions.abs() < 0.999).all(dim=1)  # beyond, torch has lost the digits
    expected = squashed.log_prob(actions.double()).sum(dim=1)
    assert is_inside.sum() > 50
    assert torch.allclose(actual.double()[is_inside], expected[is_inside], atol=1e-3)


def test_all_learning_rates_fall_with_transitions() -> None:
    config = SACConfig(**SMALL, learning_rate_end=1e-3, learning_rate_transitions=800)
    agent = SAC(SPACE, UNIT, config, num_envs=20, seed=0)
    fill(agent, np.zeros((20, 1), np.float32), np.zeros(20))
    agent.update()
    learners = agent.state_dict("learner")["learners"]
    rates = [learners[f"{name}_optimizer"]["learning_rate"] for name in ("actor", "critic", "temperature")]
    assert rates == pytest.approx([2e-3] * 3)


@pytest.mark.slow
def test_the_temperature_brings_the_entropy_to_its_goal() -> None:
    agent = SAC(SPACE, UNIT, SACConfig(**SMALL, target_entropy=-0.5), num_envs=20, seed=0)
    actions = np.linspace(-1, 1, 20, dtype=np.float32)[:, None]
    fill(agent, actions, 1.0 - (actions[:, 0] - 0.4) ** 2)
    agent.update(1500)
    assert agent.update(50)["entropy"] == pytest.approx(-0.5, abs=0.15)
    assert agent.act_batch(np.eye(2, dtype=np.float32), deterministic=True)[0, 0] == pytest.approx(0.4, abs=0.15)


def test_gradients_of_squashed_actions_and_their_densities() -> None:
    outputs = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    noise = torch.randn(6, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda values: sample_actions(values, noise), (outputs,))
    means, log_stds = split_outputs(outputs)
    torch.testing.assert_close(sample_actions(outputs, noise)[0], torch.tanh(means + log_stds.exp() * noise))
