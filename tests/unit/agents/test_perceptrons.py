"""Networks against modules of torch, and squashed actions against numerical gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from gymnasium.spaces import Box

from envfleet.agents import DDDQNConfig
from envfleet.agents.networks import DuelingNetwork, Perceptron, TwinCritics, mlp
from envfleet.agents.packing import Packing
from envfleet.agents.squashing import moments, propose

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_a_perceptron_is_what_mlp_makes() -> None:
    plain, ours, rows = mlp([3, 8, 2]), Perceptron([3, 8, 2]), torch.randn(6, 3)
    ours.load_state_dict(plain.state_dict())
    torch.testing.assert_close(ours(rows), plain(rows))
    copied = copy.deepcopy(ours)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert not copied(rows).any()  # a copy reads its own parameters
    torch.testing.assert_close(ours(rows), plain(rows))


def test_dueling_values_are_the_papers() -> None:
    network, rows = DuelingNetwork(Packing(Box(-1.0, 1.0, (2,))), DDDQNConfig(hidden=(8,)), 3), torch.randn(4, 2)
    features = network.body(rows)
    values, advantages = network.value(features), network.advantages(features)
    torch.testing.assert_close(network(rows), values + advantages - advantages.mean(dim=1, keepdim=True))
    assert set(network.state_dict()) == {
        f"{layer}.{part}" for layer in ("body.0.0", "value", "advantages") for part in ("weight", "bias")
    }


def test_judging_has_gradients_of_actions_only() -> None:
    critics, observations = TwinCritics(3, (4,)), torch.randn(5, 2)
    actions = torch.randn(5, 1, requires_grad=True)
    values = critics.judge(observations, actions)
    assert torch.equal(values, critics(observations, actions))
    torch.testing.assert_close(critics.judge(observations, actions, num_critics=1), values[:1])
    values.sum().backward()
    assert actions.grad is not None
    assert all(parameter.grad is None for parameter in critics.parameters())


def test_squashed_actions_and_the_gradients_of_them_and_of_their_densities() -> None:
    outputs = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    noise = torch.randn(6, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda given: propose(given, noise), (outputs,))
    means, log_stds = moments(outputs)
    torch.testing.assert_close(propose(outputs, noise)[0], torch.tanh(means + log_stds.exp() * noise))
