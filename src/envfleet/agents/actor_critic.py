"""The networks of PPO, and its policies for discrete and for continuous actions."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from envfleet.agents.actions import ActionTable, BestChoice, Bounds, DiscreteChoices
from envfleet.agents.hyperparameters import NetworkConfig
from envfleet.agents.networks import make_encoder, mlp
from envfleet.agents.packing import Packing
from envfleet.agents.randomness import Random
from envfleet.kernels.rollouts.policies import Head

_MOST_UNIT = 1 - 1e-6  # tanh in float32 rounds to 1 beyond about 9; actions there count as this
MOST = math.atanh(_MOST_UNIT)
_SMALLEST_VARIANCE = 1e-8


class RunningMoments(nn.Module):
    """Mean and variance of a stream, by element, in float64; saved with the networks.

    Batches are joined by the formula of Chan, Golub and LeVeque (1979), which does not lose digits.

    Args:
        size: Elements.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(size, dtype=torch.float64))

    @torch.no_grad()
    def update(self, rows: Tensor) -> None:
        """Take in more, `(M, size)`."""
        rows = rows.double()
        count, mean = len(rows), rows.mean(dim=0)
        total = self.count + count
        apart = mean - self.mean
        self.squares += (rows - mean).square().sum(dim=0) + apart.square() * self.count * count / total
        self.mean += apart * count / total
        self.count.copy_(total)

    @property
    def deviation(self) -> Tensor:
        """Standard deviation, `(size,)`; 1 before anything was seen, and where nothing varies."""
        variance = self.squares / self.count.clamp(min=1.0)
        return torch.where(variance > _SMALLEST_VARIANCE, variance, torch.ones_like(variance)).sqrt()

    def normalise(self, values: Tensor) -> Tensor:
        """Bring values to mean 0 and variance 1, in their own dtype."""
        return (values - self.mean.to(values.dtype)) / self.deviation.to(values.dtype)

    def restore(self, values: Tensor) -> Tensor:
        """Undo `normalise`."""
        return values * self.deviation.to(values.dtype) + self.mean.to(values.dtype)


class ActorCritic(nn.Module):
    """A network for the policy and one for values, apart from each other, with the moments of what they see.

    Args:
        packing: Of observations.
        outputs: Of the policy.
        config: Of the networks.
        initial_log_std: Of the outputs, to be learned; `None` if they are not the means of a distribution.
    """

    def __init__(self, packing: Packing, outputs: int, config: NetworkConfig, initial_log_std: float | None) -> None:
        super().__init__()
        self.actor_encoder, inputs = make_encoder(packing, config.network)
        self.critic_encoder, _ = make_encoder(packing, config.network)
        for encoder in (self.actor_encoder, self.critic_encoder):
            if config.network is None:
                _orthogonal(encoder, math.sqrt(2))
        self.actor, self.critic = (
            _orthogonal(mlp([inputs, *config.hidden, size], config.activation, layer_norm=config.layer_norm), last_gain)
            for size, last_gain in ((outputs, 0.01), (1, 1.0))
        )
        self.is_dense = isinstance(self.actor_encoder, nn.Identity) and not config.layer_norm
        self.log_std = nn.Parameter(torch.full((outputs,), initial_log_std or 0.0), initial_log_std is not None)
        self.observation_moments = RunningMoments(packing.num_inputs)
        self.value_moments = RunningMoments(1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the policy is made of, `(B, outputs)`."""
        outputs: Tensor = self.actor(self.actor_encoder(self.observation_moments.normalise(inputs)))
        return outputs

    def raw_values(self, inputs: Tensor) -> Tensor:
        """Values as the critic learns them, `(B,)`."""
        values: Tensor = self.critic(self.critic_encoder(self.observation_moments.normalise(inputs)))
        return values.squeeze(-1)

    @torch.no_grad()
    def take_returns(self, returns: Tensor) -> None:
        """Take returns, `(B,)`, into the moments of values, and keep what the critic says as it is.

        Its last layer makes up for the change of scale (PopArt, van Hasselt et al. 2016, arXiv:1602.07714, equation 6).
        """
        moments, last = self.value_moments, self.critic[-1]
        mean, deviation = moments.mean.clone(), moments.deviation
        moments.update(returns[:, None])
        for parameter in last.parameters():
            parameter.mul_((deviation / moments.deviation).to(parameter.dtype))
        list(last.parameters())[1].add_(((mean - moments.mean) / moments.deviation).to(torch.float32))

    def export(self) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """W and b of every layer of the actor, float64, with the normalisation of observations in the first."""
        layers = [layer for layer in self.actor if isinstance(layer, nn.Linear)]
        weights = [
            (layer.weight.detach().double().cpu().numpy(), layer.bias.detach().double().cpu().numpy())
            for layer in layers
        ]
        moments = self.observation_moments
        first = weights[0][0] / moments.deviation.cpu().numpy()
        return [(first, weights[0][1] - first @ moments.mean.cpu().numpy()), *weights[1:]]


class CategoricalPolicy:
    """The outputs are the logarithms of chances, up to a constant.

    Attributes:
        num_outputs: How many there are.
        best: From outputs to the likeliest actions.
    """

    def __init__(self, space: spaces.Discrete[Any]) -> None:
        self._choices = DiscreteChoices(space)
        self.num_outputs, self.best = len(self._choices), BestChoice(self._choices)

    def draw(self, outputs: Tensor, log_std: Tensor, random: Random) -> NDArray[Any]:
        """Random actions."""
        drawn = torch.multinomial(outputs.softmax(dim=1), 1, generator=random.torch).squeeze(1)
        return self._choices.take(drawn.cpu().numpy())

    def targets(self, actions: NDArray[Any]) -> Tensor:
        """Numbers of the actions, from 0."""
        return torch.from_numpy(self._choices.indices(actions))

    def log_probs(self, outputs: Tensor, log_std: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of the chances of actions, and entropies, `(B,)` each."""
        logs = outputs.log_softmax(dim=1)
        return logs.gather(1, targets[:, None]).squeeze(1), -(logs.exp() * logs).sum(dim=1)

    def head(self, deterministic: bool, log_std: Tensor) -> tuple[Head, NDArray[Any] | None]:
        """Return the name of this in a compiled policy."""
        return ("argmax" if deterministic else "categorical"), None


class SquashedPolicy:
    """The outputs are the means of a normal distribution, whose draws are squashed into bounds by tanh.

    All is reckoned before the tanh: its slope is the same under the old policy and the new, so it falls out of ratios.

    Attributes:
        num_outputs: How many there are.
        best: From outputs to the likeliest actions.
    """

    def __init__(self, space: spaces.Space[Any] | ActionTable) -> None:
        self.best = Bounds(space)
        self.num_outputs = self.best.size

    def draw(self, outputs: Tensor, log_std: Tensor, random: Random) -> NDArray[Any]:
        """Random actions."""
        return self.best.take(torch.tanh(outputs + log_std.exp() * random.normal(outputs)).cpu().numpy())

    def targets(self, actions: NDArray[Any]) -> Tensor:
        """Return what the tanh was taken of."""
        return torch.from_numpy(np.arctanh(self.best.units(actions).clip(-_MOST_UNIT, _MOST_UNIT)))

    def log_probs(self, outputs: Tensor, log_std: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of the densities of actions before the tanh, and entropies, `(B,)` each.

        Means beyond the outermost action count as that one, or what is drawn around them would look unlikely.
        """
        scaled = (targets - outputs.clamp(-MOST, MOST)) * (-log_std).exp()
        logs = -0.5 * scaled.square() - log_std - 0.5 * math.log(2 * math.pi)
        entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
        return logs.sum(dim=1), entropy.expand(len(outputs))

    def head(self, deterministic: bool, log_std: Tensor) -> tuple[Head, NDArray[Any] | None]:
        """Return the name of this in a compiled policy, and its noise."""
        return ("tanh", None) if deterministic else ("tanh_gaussian", log_std.detach().cpu().numpy())


ActorPolicy = CategoricalPolicy | SquashedPolicy
Module = TypeVar("Module", bound=nn.Module)


def _orthogonal(network: Module, last_gain: float) -> Module:
    layers = [layer for layer in network.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, last_gain if layer is layers[-1] else math.sqrt(2))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return network
