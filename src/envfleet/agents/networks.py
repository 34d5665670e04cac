"""Networks of agents: encoders of observations followed by dense layers."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from envfleet.agents.hyperparameters import NetworkConfig
from envfleet.agents.optimizer import ParameterBuffer
from envfleet.agents.packing import PackedArray, Packing
from envfleet.errors import InvalidArgument
from envfleet.registry import find_own

_MODULES = {"relu": nn.ReLU, "tanh": nn.Tanh}
Network = TypeVar("Network", bound=nn.Module)

_SMALLEST_VARIANCE = 1e-8
_MOST_ONE_HOT = 64  # choices with more values have learned vectors of this size


def make_encoder(packing: Packing, network: str | None = None) -> tuple[nn.Module, int]:
    """Return a new encoder, a module from rows of `Packing.rows` to features, and the number of features.

    For vectors it is `nn.Identity`. Choices become one-hot vectors, or learned vectors if they have many values. Images
    (three dimensions of uint8 or bool) go through convolutions. Parts of Dict and Tuple observations are encoded
    separately, and their features are concatenated.

    Args:
        packing: Packing of the observations.
        network: `"module:name"` of a callable that creates the encoder instead. It is called with the observation space
            and returns a module, which is called with a batch of observations and returns features, `(N, size)`.

    Raises:
        InvalidArgument: The callable does not exist, or does not return such a module.
    """
    if network is None and is_vector(packing):
        return nn.Identity(), packing.num_inputs
    encoder: nn.Module = PartEncoder(packing) if network is None else OwnEncoder(packing, network)
    try:
        with torch.no_grad():
            features = encoder(torch.zeros(2, packing.num_inputs))
    except Exception as error:  # user code can raise anything
        raise InvalidArgument(f"network={network!r} failed on 2 observations of {packing.original}: {error}") from error
    if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != 2:
        result = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else f"a {type(features).__name__}"
        raise InvalidArgument(
            f"network={network!r} returned {result} for a batch of 2 observations, expected a tensor of shape "
            "(2, number of features): flatten all but the first dimension"
        )
    return encoder, features.shape[1]


class PartEncoder(nn.Module):
    """Encode the parts of an observation and concatenate their features."""

    def __init__(self, packing: Packing) -> None:
        super().__init__()
        self._packing = packing
        self.parts = nn.ModuleList(_encoder_of(part) for part in packing.parts)

    def forward(self, rows: Tensor) -> Tensor:
        """Return features, `(N, features)`, of rows, `(N, inputs)`."""
        columns = self._packing.columns(rows)
        return torch.cat([encode(column) for encode, column in zip(self.parts, columns, strict=True)], dim=1)


class ChoiceEncoder(nn.Module):
    """Encode choices as one-hot vectors, or as learned vectors if they have many values.

    Args:
        counts: Number of values of each choice.
    """

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        self._counts = counts
        self.tables = nn.ModuleList(
            nn.Embedding(count, _MOST_ONE_HOT) if count > _MOST_ONE_HOT else nn.Identity() for count in counts
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Return features, `(N, features)`, of choices counted from 0, `(N, choices)`."""
        features = []
        for table, count, column in zip(self.tables, self._counts, rows.unbind(dim=1), strict=True):
            if count > _MOST_ONE_HOT:
                features.append(table(column.long()))
            else:
                features.append((column[:, None] == torch.arange(count, device=rows.device)).float())
        return torch.cat(features, dim=1)


class ImageEncoder(nn.Sequential):
    """Convolutions: those of Mnih et al. 2015 for images of 36 pixels and more, one layer of 16 filters for others.

    The latter is the network of MinAtar (Young & Tian 2019, arXiv:1903.03176).

    Args:
        shape: Shape of an image; the channels are the dimension that differs from two equal ones, otherwise the smaller
            of the first and the last.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        first, middle, last = shape
        is_first = middle == last if (first == middle) != (middle == last) else first < last
        channels, height, width = (first, middle, last) if is_first else (last, first, middle)
        self._shape, self._is_first = shape, is_first
        is_large = min(height, width) >= 36
        layers = list[nn.Module]()
        for filters, size, stride in [(32, 8, 4), (64, 4, 2), (64, 3, 1)] if is_large else [(16, 3, 1)]:
            layers += [nn.Conv2d(channels, filters, size, stride, padding=int(min(height, width) < 3)), nn.ReLU()]
            channels = filters
        super().__init__(*layers, nn.Flatten())

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """Return features, `(N, features)`, of images, `(N, pixels)`."""
        images = input.reshape(-1, *self._shape)
        features: Tensor = super().forward(images if self._is_first else images.permute(0, 3, 1, 2))  # type: ignore[no-untyped-call]
        return features


class OwnEncoder(nn.Module):
    """User-defined encoder, which receives observations in the form of their space.

    Boxes are float32 (uint8 scaled to [0, 1]), choices int64 from 0; Dicts are dicts, Tuples are tuples.

    Args:
        packing: Packing of the observations.
        network: `"module:name"` of the callable that creates the module.
    """

    def __init__(self, packing: Packing, network: str) -> None:
        super().__init__()
        self._packing = packing
        make = find_own(network, "network")
        try:
            self.module: nn.Module = make(packing.original)
        except TypeError as error:
            raise InvalidArgument(
                f"network={network!r} cannot be called with the observation space ({error}): define it with that "
                "single argument"
            ) from error
        if not isinstance(self.module, nn.Module):
            raise InvalidArgument(
                f"network={network!r} returned a {type(self.module).__name__}, expected a torch.nn.Module: name a "
                "callable that takes the observation space and returns a module"
            )

    def forward(self, rows: Tensor) -> Tensor:
        """Return features, `(N, features)`, of rows, `(N, inputs)`."""
        features: Tensor = self.module(self._packing.nest(rows))
        return features


def is_vector(packing: Packing) -> bool:
    """Return whether observations are vectors, which need no encoder."""
    return not packing.is_nested and not any(part.counts or part.is_image for part in packing.parts)


def _encoder_of(part: PackedArray) -> nn.Module:
    if part.counts:
        return ChoiceEncoder(part.counts)
    return ImageEncoder(part.shape) if part.is_image else nn.Identity()


def mlp(sizes: Sequence[int], config: NetworkConfig) -> nn.Sequential:
    """Return dense layers, with layer norm (if configured) and activation after each but the last."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), *_behind(outputs, config)]
    return nn.Sequential(*layers[: -1 - config.layer_norm])


def _behind(outputs: int, config: NetworkConfig) -> list[nn.Module]:
    """Return the modules after a hidden layer."""
    norm = [nn.LayerNorm(outputs)] if config.layer_norm else []
    return [*norm, _MODULES[config.activation]()]


def network_of(packing: Packing, config: NetworkConfig, outputs: int) -> nn.Module:
    """Return a network from rows of observations, `(N, inputs)`, to `(N, outputs)`."""
    encoder, inputs = make_encoder(packing, config.network)
    body = mlp([inputs, *config.hidden, outputs], config)
    return body if isinstance(encoder, nn.Identity) else nn.Sequential(encoder, body)


class DuelingNetwork(nn.Module):
    """Action values as the value of a state and the advantages of its actions (Wang et al. 2016, equation 9)."""

    def __init__(self, packing: Packing, config: NetworkConfig, num_actions: int) -> None:
        super().__init__()
        self._packing = packing
        self.encoder, inputs = make_encoder(packing, config.network)
        last = config.hidden[-1]
        layers = mlp([inputs, *config.hidden], config)
        self.body = nn.Sequential(layers, *_behind(last, config))
        value, self.heads = nn.Linear(last, 1), nn.Linear(last, num_actions)
        self.heads.weight = nn.Parameter(torch.cat([value.weight, self.heads.weight]))  # the value comes first
        self.heads.bias = nn.Parameter(torch.cat([value.bias, self.heads.bias]))
        self.heads.out_features += 1

    def forward(self, inputs: Tensor) -> Tensor:
        """Return action values, `(N, num_actions)`, for inputs, `(N, inputs)`."""
        outputs: Tensor = self.heads(self.body(self.encoder(inputs)))
        value, advantages = outputs[:, :1], outputs[:, 1:]
        return self._packing.masked(inputs, value + advantages - advantages.mean(dim=1, keepdim=True))


class Critics(nn.Module):
    """Two action-value networks with a shared encoder of observations."""

    def __init__(self, packing: Packing, config: NetworkConfig, size: int) -> None:
        super().__init__()
        self.encoder, inputs = make_encoder(packing, config.network)
        self.critics = nn.ModuleList(mlp([inputs + size, *config.hidden, 1], config) for _ in range(2))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return values of both critics, `(2, N)`, for observations and actions, `(N, …)` each."""
        return self._values(self.encoder(observations), actions, len(self.critics))

    def action_values(self, observations: Tensor, actions: Tensor, num_critics: int | None = None) -> Tensor:
        """Return values of the first critics (by default both), with gradients of the actions but not the encoder."""
        with torch.no_grad():
            features = self.encoder(observations)
        return self._values(features, actions, num_critics or len(self.critics))

    def _values(self, features: Tensor, actions: Tensor, num_critics: int) -> Tensor:
        inputs = torch.cat([features, actions], dim=1)
        return torch.stack([critic(inputs).squeeze(1) for critic in self.critics[:num_critics]])


def make_target(network: Network) -> tuple[Network, ParameterBuffer]:
    """Return a target network, and the buffer of its parameters for soft updates."""
    target = copy.deepcopy(network).requires_grad_(False)
    pairs = zip(target.parameters(), network.parameters(), strict=True)
    return target, ParameterBuffer(copied for copied, parameter in pairs if parameter.requires_grad)


class RunningMoments(nn.Module):
    """Running mean and variance of each element, in float64; saved with the networks.

    Batches are combined by the numerically stable formula of Chan, Golub and LeVeque (1979).

    Args:
        size: Number of elements.
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
        """Add rows, `(M, size)`."""
        rows = rows.double()
        count, mean = len(rows), rows.mean(dim=0)
        total = self.count + count
        difference = mean - self.mean
        self.squares += (rows - mean).square().sum(dim=0) + difference.square() * self.count * count / total
        self.mean += difference * count / total
        self.count.copy_(total)

    @property
    def deviation(self) -> Tensor:
        """Standard deviation, `(size,)`; 1 before the first update, and for constant elements."""
        variance = self.squares / self.count.clamp(min=1.0)
        return torch.where(variance > _SMALLEST_VARIANCE, variance, torch.ones_like(variance)).sqrt()

    def forward(self, values: Tensor) -> Tensor:
        """Normalize values to mean 0 and variance 1, in their dtype; unchanged before the first update."""
        return (values - self.mean.to(values.dtype)) / self.deviation.to(values.dtype)

    def restore(self, values: Tensor) -> Tensor:
        """Undo `forward`."""
        return values * self.deviation.to(values.dtype) + self.mean.to(values.dtype)


def check_normalizable(space: spaces.Space[Any], config: Any) -> None:
    """Check that observations can be normalized.

    Raises:
        InvalidArgument: The space is not a Box or MultiBinary.
    """
    if not isinstance(space, (spaces.Box, spaces.MultiBinary)):
        raise InvalidArgument(
            f"{type(config).__name__}.normalize_observations=True for observations of {space}, expected a Box or "
            "MultiBinary: set it to False"
        )


class ActorCritic(nn.Module):
    """Separate networks for policy and values, with running moments of observations and values.

    Args:
        packing: Packing of observations.
        outputs: Number of outputs of the policy.
        config: Hyperparameters of the networks.
        initial_log_std: Initial log standard deviation, which is learned; `None` if outputs are logits.
    """

    def __init__(self, packing: Packing, outputs: int, config: NetworkConfig, initial_log_std: float | None) -> None:
        super().__init__()
        self._packing, self._masks = packing, initial_log_std is None
        self.actor_encoder, inputs = make_encoder(packing, config.network)
        self.critic_encoder, _ = make_encoder(packing, config.network)
        for encoder in (self.actor_encoder, self.critic_encoder):
            if config.network is None:
                _orthogonal(encoder, math.sqrt(2))
        self.actor = _orthogonal(mlp([inputs, *config.hidden, outputs], config), 0.01)
        self.critic = _orthogonal(mlp([inputs, *config.hidden, 1], config), 1.0)
        self.is_dense = isinstance(self.actor_encoder, nn.Identity) and not config.layer_norm
        self.log_std = nn.Parameter(torch.full((outputs,), initial_log_std or 0.0), initial_log_std is not None)
        self.observation_moments = RunningMoments(packing.num_inputs)
        self.value_moments = RunningMoments(1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the policy network, `(B, outputs)`."""
        outputs: Tensor = self.actor(self.actor_encoder(self.observation_moments(inputs)))
        return self._packing.masked(inputs, outputs) if self._masks else outputs

    def raw_values(self, inputs: Tensor) -> Tensor:
        """Return normalized values, `(B,)`, the outputs of the critic."""
        values: Tensor = self.critic(self.critic_encoder(self.observation_moments(inputs)))
        return values.squeeze(-1)

    @torch.no_grad()
    def update_value_moments(self, returns: Tensor) -> None:
        """Add returns, `(B,)`, to the moments of values without changing the values of the critic.

        The last layer compensates for the change of scale (PopArt, van Hasselt et al. 2016, arXiv:1602.07714).
        """
        moments, last = self.value_moments, self.critic[-1]
        mean, deviation = moments.mean.clone(), moments.deviation
        moments.update(returns[:, None])
        for parameter in last.parameters():
            parameter.mul_((deviation / moments.deviation).to(parameter.dtype))
        list(last.parameters())[1].add_(((mean - moments.mean) / moments.deviation).to(torch.float32))

    def export(self, scale: float) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return weight and bias of every layer of the actor, float64; the first includes the normalization.

        Args:
            scale: Divisor of observations before they are normalized.
        """
        arrays = [parameter.detach().double().cpu().numpy() for parameter in self.actor.parameters()]
        (weight, bias), *others = zip(arrays[::2], arrays[1::2], strict=True)
        moments = self.observation_moments
        weight = weight / moments.deviation.cpu().numpy()
        return [(weight / scale, bias - weight @ moments.mean.cpu().numpy()), *others]


def _orthogonal(network: Network, last_gain: float) -> Network:
    layers = [layer for layer in network.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, last_gain if layer is layers[-1] else math.sqrt(2))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return network
