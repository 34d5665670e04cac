"""Networks against modules of torch, and squashed actions against numerical gradients."""

from __future__ import annotations

import pytest
import torch
from gymnasium.spaces import Box

from envfleet.agents import DDDQNConfig, SACConfig
from envfleet.agents.networks import Critics, DuelingNetwork
from envfleet.agents.packing import Packing
from envfleet.agents.sac import sample_actions, split_outputs

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_dueling_values_are_the_papers() -> None:
    network, rows = DuelingNetwork(Packing(Box(-1.0, 1.0, (2,))), DDDQNConfig(hidden=(8,)), 3), torch.randn(4, 2)
    outputs = network.heads(network.body(rows))
    values, advantages = outputs[:, :1], outputs[:, 1:]
    torch.testing.assert_close(network(rows), values + advantages - advantages.mean(dim=1, keepdim=True))
    assert set(network.state_dict()) == {
        f"{layer}.{part}" for layer in ("body.0.0", "heads") for part in ("weight", "bias")
    }


def test_judging_has_gradients_of_actions() -> None:
    critics, observations = Critics(Packing(Box(-1.0, 1.0, (2,))), SACConfig(hidden=(4,)), 1), torch.randn(5, 2)
    actions = torch.randn(5, 1, requires_grad=True)
    values = critics.action_values(observations, actions)
    assert torch.equal(values, critics(observations, actions))
    torch.testing.assert_close(critics.action_values(observations, actions, num_critics=1), values[:1])
    values.sum().backward()
    assert actions.grad is not None


def test_gradients_of_squashed_actions_and_their_densities() -> None:
    outputs = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    noise = torch.randn(6, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda given: sample_actions(given, noise), (outputs,))
    means, log_stds = split_outputs(outputs)
    torch.testing.assert_close(sample_actions(outputs, noise)[0], torch.tanh(means + log_stds.exp() * noise))
