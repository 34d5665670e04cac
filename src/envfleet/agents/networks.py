"""The networks of all agents."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

Activation = Literal["relu", "tanh"]
_MODULES = {"relu": nn.ReLU, "tanh": nn.Tanh}
LOG_STD_RANGE = (-5.0, 2.0)
Network = TypeVar("Network", bound=nn.Module)


def encode(observations: Tensor) -> Tensor:
    """Observations as networks read them: float32 `(N, size)`, images scaled to [0, 1]."""
    flat = observations.flatten(start_dim=1)
    return flat.float() / 255.0 if flat.dtype == torch.uint8 else flat.float()


def mlp(sizes: Sequence[int], activation: Activation = "relu") -> nn.Sequential:
    """A fully connected network with an activation after every layer but the last."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), _MODULES[activation]()]
    return nn.Sequential(*layers[:-1])


class DuelingNetwork(nn.Module):
    """Action values as the value of a state and the advantages of its actions (Wang et al. 2016, equation 9)."""

    def __init__(self, inputs: int, hidden: Sequence[int], num_actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(mlp([inputs, *hidden]), nn.ReLU())
        self.value = nn.Linear(hidden[-1], 1)
        self.advantages = nn.Linear(hidden[-1], num_actions)

    def forward(self, inputs: Tensor) -> Tensor:
        """`(N, inputs)` to `(N, num_actions)`."""
        features = self.body(inputs)
        advantages: Tensor = self.advantages(features)
        values: Tensor = self.value(features)
        return values + advantages - advantages.mean(dim=1, keepdim=True)


class GaussianActor(nn.Module):
    """Means and standard deviations of a normal distribution over actions before the tanh."""

    def __init__(self, inputs: int, hidden: Sequence[int], size: int) -> None:
        super().__init__()
        self.body = mlp([inputs, *hidden, 2 * size])

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """`(N, inputs)` to means and logarithms of standard deviations, `(N, size)` each."""
        means, raw = self.body(inputs).chunk(2, dim=1)
        low, high = LOG_STD_RANGE
        return means, (high - low) / 2 * torch.tanh(raw) + (high + low) / 2


class TwinCritics(nn.Module):
    """Two action-value networks, evaluated together: every layer is one batched product."""

    def __init__(self, inputs: int, hidden: Sequence[int], num_critics: int = 2) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in itertools.pairwise([inputs, *hidden, 1]):
            bound = 1 / math.sqrt(fan_in)
            self.weights.append(nn.Parameter(torch.empty(num_critics, fan_in, fan_out).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(num_critics, 1, fan_out).uniform_(-bound, bound)))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """`(N, …)` each to values `(num_critics, N)`."""
        features = torch.cat([observations, actions], dim=1).expand(len(self.weights[0]), -1, -1)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            features = torch.baddbmm(bias, torch.relu(features) if layer else features, weight)
        return features.squeeze(-1)


def target_of(network: Network) -> Network:
    """A copy that is not learned; `follow` moves it."""
    return copy.deepcopy(network).requires_grad_(False)
