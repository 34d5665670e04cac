"""The networks of all agents."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from envfleet.agents.perceptrons import perceptrons
from envfleet.agents.squashing import moments

Activation = Literal["relu", "tanh"]
_MODULES = {"relu": nn.ReLU, "tanh": nn.Tanh}
Network = TypeVar("Network", bound=nn.Module)


def encode(observations: Tensor) -> Tensor:
    """Observations as networks read them: float32 `(N, size)`, images scaled to [0, 1]."""
    flat = observations.flatten(start_dim=1)
    return flat.float() / 255.0 if flat.dtype == torch.uint8 else flat.float()


def mlp(sizes: Sequence[int], activation: Activation = "relu") -> nn.Sequential:
    """Return a fully connected network with an activation after every layer but the last."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), _MODULES[activation]()]
    return nn.Sequential(*layers[:-1])


class Perceptron(nn.Sequential):
    """What `mlp` makes, with ReLU: of the same parameters and results, but cheaper to learn in small batches."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(*mlp(sizes))
        self._learned = tuple(self.parameters())

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """`(N, inputs)` to `(N, outputs)`."""
        return perceptrons(input, self._learned)


class DuelingNetwork(nn.Module):
    """Action values as the value of a state and the advantages of its actions (Wang et al. 2016, equation 9)."""

    combination: Tensor

    def __init__(self, inputs: int, hidden: Sequence[int], num_actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(mlp([inputs, *hidden]), nn.ReLU())
        self.value = nn.Linear(hidden[-1], 1)
        self.advantages = nn.Linear(hidden[-1], num_actions)
        # The value, and every advantage less the mean of all: (1 + num_actions, num_actions).
        combination = torch.cat([torch.ones(1, num_actions), torch.eye(num_actions) - 1 / num_actions])
        self.register_buffer("combination", combination, persistent=False)
        self._body, self._value, self._advantages = (
            tuple(part.parameters()) for part in (self.body, self.value, self.advantages)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """`(N, inputs)` to `(N, num_actions)`."""
        heads = [torch.cat(parts) for parts in zip(self._value, self._advantages, strict=True)]
        return perceptrons(inputs, (*self._body, *heads)) @ self.combination


class GaussianActor(nn.Module):
    """Means and standard deviations of a normal distribution over actions before the tanh."""

    def __init__(self, inputs: int, hidden: Sequence[int], size: int) -> None:
        super().__init__()
        self.body = Perceptron([inputs, *hidden, 2 * size])

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """`(N, inputs)` to means and logarithms of standard deviations, `(N, size)` each."""
        return moments(self.body(inputs))


class TwinCritics(nn.Module):
    """Two action-value networks, evaluated together."""

    def __init__(self, inputs: int, hidden: Sequence[int], num_critics: int = 2) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in itertools.pairwise([inputs, *hidden, 1]):
            bound = 1 / math.sqrt(fan_in)
            self.weights.append(nn.Parameter(torch.empty(num_critics, fan_in, fan_out).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(num_critics, 1, fan_out).uniform_(-bound, bound)))
        layers = zip(self.weights, self.biases, strict=True)
        self._learned = tuple(parameter for layer in layers for parameter in layer)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """`(N, …)` each to values `(num_critics, N)`."""
        return perceptrons(torch.cat([observations, actions], dim=1), self._learned).squeeze(-1)

    def judge(self, observations: Tensor, actions: Tensor, num_critics: int | None = None) -> Tensor:
        """Return the same by the first critics, or by all, with gradients of actions only."""
        weights = [parameter.detach()[:num_critics] for parameter in self._learned]
        return perceptrons(torch.cat([observations, actions], dim=1), weights).squeeze(-1)


def target_of(network: Network) -> Network:
    """Return a copy that is not learned; a `Follower` moves it."""
    return copy.deepcopy(network).requires_grad_(False)
