"""Networks against modules of torch, and squashed actions against numerical gradients."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.spaces import Box
from torch import nn

from envfleet.agents import DDDQNConfig, SACConfig
from envfleet.agents.networks import Critics, DuelingNetwork, make_target
from envfleet.agents.optimizer import ParameterBuffer
from envfleet.agents.packing import Packing


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


SPACE = spaces.Box(-1, 1, (2,), np.float32)


def critics_of(*hidden: int) -> Critics:
    return Critics(Packing(SPACE), SACConfig(hidden=hidden), 1)


def test_twin_critics_are_two_networks() -> None:
    critics = critics_of(8, 4)
    observations, actions = torch.randn(5, 2), torch.randn(5, 1)
    together = critics(observations, actions)
    for number, alone in enumerate(critics.critics):
        assert torch.equal(together[number], alone(torch.cat([observations, actions], dim=1)).squeeze(1))
    assert not torch.allclose(together[0], together[1])


def test_dueling_values_are_the_mean_over_actions() -> None:
    network, inputs = (
        DuelingNetwork(Packing(spaces.Box(-1.0, 1.0, (2,))), DDDQNConfig(hidden=(8,)), 3),
        torch.randn(4, 2),
    )
    assert torch.allclose(network(inputs).mean(dim=1), network.heads(network.body(inputs))[:, 0], atol=1e-6)


def test_targets_follow() -> None:
    network = nn.Linear(2, 2)
    network.bias.requires_grad_(False)  # which does not move
    target, follower = make_target(network)
    start = target.weight.clone()
    network.weight.data += 1.0
    learned = ParameterBuffer([network.weight])
    follower.soft_update(learned, 0.25)
    assert torch.allclose(target.weight, start + 0.25)
    follower.soft_update(learned, 1.0)
    assert torch.equal(target.weight, network.weight)
