"""Whole passes through networks, and squashed actions, against autograd's own."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
from gymnasium.spaces import Box
from torch import Tensor

from envfleet.agents import DDDQNConfig
from envfleet.agents.networks import DuelingNetwork, Perceptron, TwinCritics, mlp
from envfleet.agents.packing import Packing
from envfleet.agents.perceptrons import perceptrons
from envfleet.agents.squashing import moments, propose

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def one_by_one(rows: Tensor, parameters: list[Tensor]) -> Tensor:
    """What `perceptrons` computes, an operation at a time."""
    results = rows
    for number, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
        inputs = torch.relu(results) if number else results
        results = inputs @ (weight.T if weight.dim() == 2 else weight) + bias
    return results


@pytest.mark.parametrize("wanted", ["parameters", "rows", "both"])
@pytest.mark.parametrize("widths", [(5, 8, 6, 3), (5, 8, 6, 1), (1, 4, 1), (5, 2)], ids=str)
@pytest.mark.parametrize("number", [None, 1, 2, 3], ids=lambda number: f"{number} networks")
def test_results_and_gradients_are_autograds(number: int | None, widths: tuple[int, ...], wanted: str) -> None:
    parameters: list[Tensor] = []
    for inputs, width in itertools.pairwise(widths):
        shapes = ((width, inputs), (width,)) if number is None else ((number, inputs, width), (number, 1, width))
        parameters += [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    rows = torch.randn(7, widths[0], dtype=torch.float64)
    given = {"parameters": parameters, "rows": [rows], "both": [rows, *parameters]}[wanted]
    for tensor in given:
        tensor.requires_grad_()
    found: list[tuple[Tensor, ...]] = []
    networks: tuple[Callable[[Tensor, list[Tensor]], Tensor], ...] = (one_by_one, perceptrons)
    for network in networks:
        results = network(rows, parameters)
        found.append((results, *torch.autograd.grad((results - 0.5).square().sum(), given)))
        with torch.no_grad():
            torch.testing.assert_close(network(rows, parameters), results.detach())
    for expected, actual in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected)


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


def test_gradients_of_gradients_are_refused() -> None:
    network, rows = Perceptron([2, 4, 1]), torch.randn(3, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(network(rows).square().sum(), [rows], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
