"""The networks of all agents: encoders of observations, and dense layers behind them."""

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

from envfleet.agents.descent import Flat
from envfleet.agents.hyperparameters import NetworkConfig
from envfleet.agents.packing import PackedArray, Packing
from envfleet.errors import InvalidArgument
from envfleet.registry import find_own

_MODULES = {"relu": nn.ReLU, "tanh": nn.Tanh}
Network = TypeVar("Network", bound=nn.Module)

_SMALLEST_VARIANCE = 1e-8
_MOST_ONE_HOT = 64  # of more values each has a vector of so many numbers, which is learned


def make_encoder(packing: Packing, network: str | None = None) -> tuple[nn.Module, int]:
    """Return a new module from rows, as `Packing.rows` has them, to features, and the number of features.

    Vectors are features as they are: then it is `nn.Identity`. Choices become one-hot vectors, or learned ones if they
    are many. Images (three dimensions of uint8 or bool) go through convolutions. Parts of Dict and
    Tuple observations are encoded each in its own way, and their features are concatenated.

    Args:
        packing: Of the observations.
        network: `"module:name"` of a callable that makes the encoder instead. It is called with the observation space
            and returns a module, which is called with a batch of observations and returns features, `(N, size)`.

    Raises:
        InvalidArgument: There is no such callable, or what it makes is no such module.
    """
    if network is None and is_vector(packing):
        return nn.Identity(), packing.num_inputs
    encoder: nn.Module = PartEncoder(packing) if network is None else OwnEncoder(packing, network)
    try:
        with torch.no_grad():
            features = encoder(torch.zeros(2, packing.num_inputs))
    except Exception as error:  # whatever a module of the user's own may raise
        raise InvalidArgument(f"network={network!r} failed on 2 observations of {packing.original}: {error}") from error
    if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != 2:
        found = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else f"a {type(features).__name__}"
        raise InvalidArgument(
            f"network={network!r} returned {found} for a batch of 2 observations, expected a tensor of shape "
            "(2, number of features): flatten all but the first dimension"
        )
    return encoder, features.shape[1]


class PartEncoder(nn.Module):
    """Encodes the parts of an observation and concatenates their features."""

    def __init__(self, packing: Packing) -> None:
        super().__init__()
        self._packing = packing
        self.parts = nn.ModuleList(_encoder_of(part) for part in packing.parts)

    def forward(self, rows: Tensor) -> Tensor:
        """`(N, inputs)` to `(N, features)`."""
        columns = self._packing.columns(rows)
        return torch.cat([encode(column) for encode, column in zip(self.parts, columns, strict=True)], dim=1)


class ChoiceEncoder(nn.Module):
    """Choices as one-hot vectors, or as learned ones where there are many.

    Args:
        counts: Values of each choice.
    """

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        self._counts = counts
        self.tables = nn.ModuleList(
            nn.Embedding(count, _MOST_ONE_HOT) if count > _MOST_ONE_HOT else nn.Identity() for count in counts
        )

    def forward(self, rows: Tensor) -> Tensor:
        """`(N, choices)`, counted from 0, to `(N, features)`."""
        features = []
        for table, count, column in zip(self.tables, self._counts, rows.unbind(dim=1), strict=True):
            if count > _MOST_ONE_HOT:
                features.append(table(column.long()))
            else:
                features.append((column[:, None] == torch.arange(count, device=rows.device)).float())
        return torch.cat(features, dim=1)


class ImageEncoder(nn.Sequential):
    """Convolutions: those of Mnih et al. 2015 for images of 36 pixels and more, one of 16 filters for smaller ones.

    The latter is that of MinAtar (Young & Tian 2019, arXiv:1903.03176).

    Args:
        shape: Of an image; its channels are the dimension that differs from two equal ones, else the smaller of the
            first and the last.
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
        """`(N, pixels)` to `(N, features)`."""
        images = input.reshape(-1, *self._shape)
        features: Tensor = super().forward(images if self._is_first else images.permute(0, 3, 1, 2))  # type: ignore[no-untyped-call]
        return features


class OwnEncoder(nn.Module):
    """A module of the user's own, which sees observations in the form of their space.

    Boxes are float32 (uint8 scaled to [0, 1]), choices int64 from 0; Dicts are dicts, Tuples are tuples.

    Args:
        packing: Of the observations.
        network: `"module:name"`.
    """

    def __init__(self, packing: Packing, network: str) -> None:
        super().__init__()
        self._packing = packing
        make = find_own(network, "network")
        try:
            self.module: nn.Module = make(packing.original)
        except TypeError as error:
            raise InvalidArgument(
                f"network={network!r} cannot be called with the observation space ({error}): let it take that alone"
            ) from error
        if not isinstance(self.module, nn.Module):
            raise InvalidArgument(
                f"network={network!r} made a {type(self.module).__name__}, expected a torch.nn.Module: name a callable "
                "that takes the observation space and returns a module"
            )

    def forward(self, rows: Tensor) -> Tensor:
        """`(N, inputs)` to `(N, features)`."""
        features: Tensor = self.module(self._packing.nest(rows))
        return features


def is_vector(packing: Packing) -> bool:
    """Return whether dense layers can take observations as they are."""
    return not packing.is_nested and not any(part.counts or part.is_image for part in packing.parts)


def _encoder_of(part: PackedArray) -> nn.Module:
    if part.counts:
        return ChoiceEncoder(part.counts)
    return ImageEncoder(part.shape) if part.is_image else nn.Identity()


def mlp(sizes: Sequence[int], config: NetworkConfig) -> nn.Sequential:
    """Return a fully connected network with an activation after every layer but the last, normalized before it."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), *_behind(outputs, config)]
    return nn.Sequential(*layers[: -1 - config.layer_norm])


def _behind(outputs: int, config: NetworkConfig) -> list[nn.Module]:
    """Return what follows a hidden layer."""
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
        """`(N, inputs)` to `(N, num_actions)`."""
        outputs: Tensor = self.heads(self.body(self.encoder(inputs)))
        value, advantages = outputs[:, :1], outputs[:, 1:]
        return self._packing.masked(inputs, value + advantages - advantages.mean(dim=1, keepdim=True))


class Critics(nn.Module):
    """Two action-value networks behind one encoder of observations."""

    def __init__(self, packing: Packing, config: NetworkConfig, size: int) -> None:
        super().__init__()
        self.encoder, inputs = make_encoder(packing, config.network)
        self.critics = nn.ModuleList(mlp([inputs + size, *config.hidden, 1], config) for _ in range(2))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """`(N, …)` each to values `(2, N)`."""
        return self._values(self.encoder(observations), actions, len(self.critics))

    def judge(self, observations: Tensor, actions: Tensor, num_critics: int | None = None) -> Tensor:
        """Return the same by the first critics, or by all, for gradients of actions only."""
        with torch.no_grad():
            features = self.encoder(observations)
        return self._values(features, actions, num_critics or len(self.critics))

    def _values(self, features: Tensor, actions: Tensor, num_critics: int) -> Tensor:
        inputs = torch.cat([features, actions], dim=1)
        return torch.stack([critic(inputs).squeeze(1) for critic in self.critics[:num_critics]])


def target_of(network: Network) -> tuple[Network, Flat]:
    """Return a copy that is not learned, and those of its parameters that follow the learned ones."""
    target = copy.deepcopy(network).requires_grad_(False)
    pairs = zip(target.parameters(), network.parameters(), strict=True)
    return target, Flat(copied for copied, parameter in pairs if parameter.requires_grad)


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

    def forward(self, values: Tensor) -> Tensor:
        """Bring values to mean 0 and variance 1, in their own dtype; they stay as they are before anything was seen."""
        return (values - self.mean.to(values.dtype)) / self.deviation.to(values.dtype)

    def restore(self, values: Tensor) -> Tensor:
        """Undo `forward`."""
        return values * self.deviation.to(values.dtype) + self.mean.to(values.dtype)


def check_moments(space: spaces.Space[Any], config: Any) -> None:
    """Check that observations can be normalized.

    Raises:
        InvalidArgument: They are choices, or have parts.
    """
    if not isinstance(space, (spaces.Box, spaces.MultiBinary)):
        raise InvalidArgument(
            f"{type(config).__name__}.normalize_observations=True for observations of {space}, expected a Box or "
            "MultiBinary: choices have no mean, leave it out"
        )


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
        """Return what the policy is made of, `(B, outputs)`."""
        outputs: Tensor = self.actor(self.actor_encoder(self.observation_moments(inputs)))
        return self._packing.masked(inputs, outputs) if self._masks else outputs

    def raw_values(self, inputs: Tensor) -> Tensor:
        """Values as the critic learns them, `(B,)`."""
        values: Tensor = self.critic(self.critic_encoder(self.observation_moments(inputs)))
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

    def export(self, scale: float) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """W and b of every layer of the actor, float64, with the normalization of observations in the first.

        Args:
            scale: By which observations are divided before that.
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
