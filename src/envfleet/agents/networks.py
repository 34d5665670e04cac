"""The networks of all agents."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from envfleet.agents.encoders import is_vector, make_encoder
from envfleet.agents.hyperparameters import Activation, NetworkConfig
from envfleet.agents.packing import Packing
from envfleet.agents.perceptrons import perceptrons
from envfleet.agents.squashing import moments

_MODULES = {"relu": nn.ReLU, "tanh": nn.Tanh}
Network = TypeVar("Network", bound=nn.Module)


def mlp(sizes: Sequence[int], activation: Activation = "relu", *, layer_norm: bool = False) -> nn.Sequential:
    """Return a fully connected network with an activation after every layer but the last, normalised before it."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), *([nn.LayerNorm(outputs)] if layer_norm else []), _MODULES[activation]()]
    return nn.Sequential(*layers[: -1 - layer_norm])


class Perceptron(nn.Sequential):
    """What `mlp` makes, with ReLU: of the same parameters and results, but cheaper to learn in small batches."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(*mlp(sizes))
        self._learned = tuple(self.parameters())

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """`(N, inputs)` to `(N, outputs)`."""
        return perceptrons(input, self._learned)


def network_of(packing: Packing, config: NetworkConfig, outputs: int) -> nn.Module:
    """Return a network from rows of observations, `(N, inputs)`, to `(N, outputs)`."""
    encoder, inputs = make_encoder(packing, config.network)
    sizes = [inputs, *config.hidden, outputs]
    body = Perceptron(sizes) if config.is_plain else mlp(sizes, config.activation, layer_norm=config.layer_norm)
    return body if encoder is None else nn.Sequential(encoder, body)


class DuelingNetwork(nn.Module):
    """Action values as the value of a state and the advantages of its actions (Wang et al. 2016, equation 9)."""

    combination: Tensor

    def __init__(self, packing: Packing, config: NetworkConfig, num_actions: int) -> None:
        super().__init__()
        self.encoder, inputs = make_encoder(packing, config.network)
        last, self._is_plain = config.hidden[-1], config.is_plain
        layers = mlp([inputs, *config.hidden], config.activation, layer_norm=config.layer_norm)
        norm = [nn.LayerNorm(last)] if config.layer_norm else []
        self.body = nn.Sequential(layers, *norm, _MODULES[config.activation]())
        self.value = nn.Linear(last, 1)
        self.advantages = nn.Linear(last, num_actions)
        # The value, and every advantage less the mean of all: (1 + num_actions, num_actions).
        combination = torch.cat([torch.ones(1, num_actions), torch.eye(num_actions) - 1 / num_actions])
        self.register_buffer("combination", combination, persistent=False)
        self._body, self._value, self._advantages = (
            tuple(part.parameters()) for part in (self.body, self.value, self.advantages)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """`(N, inputs)` to `(N, num_actions)`."""
        features = inputs if self.encoder is None else self.encoder(inputs)
        heads = [torch.cat(parts) for parts in zip(self._value, self._advantages, strict=True)]
        if self._is_plain:
            return perceptrons(features, (*self._body, *heads)) @ self.combination
        return functional.linear(self.body(features), *heads) @ self.combination


class GaussianActor(nn.Module):
    """Means and standard deviations of a normal distribution over actions before the tanh."""

    def __init__(self, packing: Packing, config: NetworkConfig, size: int) -> None:
        super().__init__()
        self.body = network_of(packing, config, 2 * size)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """`(N, inputs)` to means and logarithms of standard deviations, `(N, size)` each."""
        return moments(self.body(inputs))


class TwinCritics(nn.Module):
    """Two action-value networks of dense layers with ReLU, evaluated together."""

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


class EncodedCritics(nn.Module):
    """Two action-value networks of any form, behind one encoder of observations."""

    def __init__(self, packing: Packing, config: NetworkConfig, size: int, num_critics: int = 2) -> None:
        super().__init__()
        self.encoder, inputs = make_encoder(packing, config.network)
        sizes = [inputs + size, *config.hidden, 1]
        self.critics = nn.ModuleList(
            mlp(sizes, config.activation, layer_norm=config.layer_norm) for _ in range(num_critics)
        )

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """`(N, …)` each to values `(num_critics, N)`."""
        features = observations if self.encoder is None else self.encoder(observations)
        return self._values(features, actions, len(self.critics))

    def judge(self, observations: Tensor, actions: Tensor, num_critics: int | None = None) -> Tensor:
        """Return the same by the first critics, or by all, for gradients of actions only."""
        with torch.no_grad():
            features = observations if self.encoder is None else self.encoder(observations)
        return self._values(features, actions, num_critics or len(self.critics))

    def _values(self, features: Tensor, actions: Tensor, num_critics: int) -> Tensor:
        inputs = torch.cat([features, actions], dim=1)
        return torch.stack([critic(inputs).squeeze(1) for critic in self.critics[:num_critics]])


def critics_of(packing: Packing, config: NetworkConfig, size: int) -> TwinCritics | EncodedCritics:
    """Return two critics of observations and actions, `(N, size)`."""
    if config.network is None and is_vector(packing) and config.is_plain:
        return TwinCritics(packing.num_inputs + size, config.hidden)
    return EncodedCritics(packing, config, size)


def target_of(network: Network) -> Network:
    """Return a copy that is not learned; a `Follower` moves it."""
    return copy.deepcopy(network).requires_grad_(False)
