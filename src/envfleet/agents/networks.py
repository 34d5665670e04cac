"""The networks of all agents."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from envfleet.agents.encoders import make_encoder
from envfleet.agents.hyperparameters import Activation, NetworkConfig
from envfleet.agents.packing import Packing
from envfleet.agents.squashing import moments

_MODULES = {"relu": nn.ReLU, "tanh": nn.Tanh}
Network = TypeVar("Network", bound=nn.Module)


def mlp(sizes: Sequence[int], activation: Activation = "relu", *, layer_norm: bool = False) -> nn.Sequential:
    """Return a fully connected network with an activation after every layer but the last, normalised before it."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), *([nn.LayerNorm(outputs)] if layer_norm else []), _MODULES[activation]()]
    return nn.Sequential(*layers[: -1 - layer_norm])


def network_of(packing: Packing, config: NetworkConfig, outputs: int) -> nn.Module:
    """Return a network from rows of observations, `(N, inputs)`, to `(N, outputs)`."""
    encoder, inputs = make_encoder(packing, config.network)
    body = mlp([inputs, *config.hidden, outputs], config.activation, layer_norm=config.layer_norm)
    return body if encoder is None else nn.Sequential(encoder, body)


class DuelingNetwork(nn.Module):
    """Action values as the value of a state and the advantages of its actions (Wang et al. 2016, equation 9)."""

    def __init__(self, packing: Packing, config: NetworkConfig, num_actions: int) -> None:
        super().__init__()
        self.encoder, inputs = make_encoder(packing, config.network)
        last = config.hidden[-1]
        layers = mlp([inputs, *config.hidden], config.activation, layer_norm=config.layer_norm)
        norm = [nn.LayerNorm(last)] if config.layer_norm else []
        self.body = nn.Sequential(layers, *norm, _MODULES[config.activation]())
        self.value, self.advantages = nn.Linear(last, 1), nn.Linear(last, num_actions)

    def forward(self, inputs: Tensor) -> Tensor:
        """`(N, inputs)` to `(N, num_actions)`."""
        features = self.body(inputs if self.encoder is None else self.encoder(inputs))
        advantages: Tensor = self.advantages(features)
        values: Tensor = self.value(features) + advantages - advantages.mean(dim=1, keepdim=True)
        return values


class GaussianActor(nn.Module):
    """Means and standard deviations of a normal distribution over actions before the tanh."""

    def __init__(self, packing: Packing, config: NetworkConfig, size: int) -> None:
        super().__init__()
        self.body = network_of(packing, config, 2 * size)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """`(N, inputs)` to means and logarithms of standard deviations, `(N, size)` each."""
        return moments(self.body(inputs))


class Critics(nn.Module):
    """Two action-value networks behind one encoder of observations, if there is one."""

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


def target_of(network: Network) -> Network:
    """Return a copy that is not learned; a `Follower` moves it."""
    return copy.deepcopy(network).requires_grad_(False)
