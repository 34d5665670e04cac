"""Hyperparameters that agents share, and intervals of valid values."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from envfleet.errors import InvalidArgument

Activation = Literal["relu", "tanh"]
Number = TypeVar("Number", bound=float | None)


@dataclasses.dataclass(frozen=True)
class Interval:
    """Valid values of a hyperparameter, as part of its type.

    Attributes:
        low: Minimum, inclusive if there is a maximum.
        high: Inclusive maximum; `None` for all finite numbers above `low`.
    """

    low: float
    high: float | None = None

    def __contains__(self, value: float) -> bool:
        return self.low < value < math.inf if self.high is None else self.low <= value <= self.high

    def __str__(self) -> str:
        return f"above {self.low:g}" if self.high is None else f"from {self.low:g} to {self.high:g}"


Positive = Annotated[Number, Interval(0)]
NotNegative = Annotated[Number, Interval(0, math.inf)]
Share = Annotated[float, Interval(0, 1)]


def between(start: float, end: float, share: float) -> float:
    """Return the linear interpolation from `start` to `end`, with the share clipped to [0, 1]."""
    return start + (end - start) * min(max(share, 0.0), 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Hyperparameters of every agent: networks of an encoder and dense layers, optimized by Adam.

    Attributes:
        learning_rate: Initial learning rate of Adam.
        learning_rate_end: Learning rate after `learning_rate_transitions`, reached linearly; `None` for a constant one.
        learning_rate_transitions: Transitions over which the learning rate changes.
        hidden: Widths of the hidden layers of every network.
        activation: Activation of the hidden layers: `"relu"` or `"tanh"`.
        layer_norm: True to normalize hidden layers before the activation (Ba et al. 2016, arXiv:1607.06450).
        network: `"module:name"` of a callable that takes the observation space and returns the encoder: a
            `torch.nn.Module` from observations to features, `(N, size)`. By default vectors are not encoded, images go
            through convolutions, choices become one-hot or learned vectors, and parts of a Dict or Tuple are encoded
            one by one.
        compiled: True to compile updates by numba if possible: networks of dense layers on the CPU, with numba
            installed. Otherwise torch makes the updates; see `is_compiled` of the agent.
    """

    learning_rate: Positive[float] = 3e-4
    learning_rate_end: Positive[float | None] = None
    learning_rate_transitions: Positive[int] = 10_000_000
    hidden: tuple[int, ...] = (256, 256)
    activation: Activation = "relu"
    layer_norm: bool = False
    network: str | None = None
    compiled: bool = True

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for field in dataclasses.fields(self):
            hint, value = hints[field.name], getattr(self, field.name)
            for allowed in getattr(hint, "__metadata__", ()):
                is_allowed = isinstance(value, hint.__origin__ | int) and (value is None or value in allowed)
                if isinstance(allowed, Interval) and not is_allowed:
                    kind = "whole number" if hint.__origin__ is int else "number"
                    raise InvalidArgument(f"{type(self).__name__}.{field.name}={value!r}: pass a {kind} {allowed}")
        widths: Any = self.hidden
        if not isinstance(widths, tuple) or not widths or any(not isinstance(w, int) or w < 1 for w in widths):
            raise InvalidArgument(
                f"{type(self).__name__}.hidden={widths!r}: pass a tuple with the width of every hidden layer, such as "
                "(256, 256)"
            )
        if self.activation not in get_args(Activation):
            raise InvalidArgument(f"{type(self).__name__}.activation={self.activation!r}: pass 'tanh' or 'relu'")

    def learning_rate_after(self, transitions: int) -> float:
        """Return the learning rate after a number of transitions."""
        end = self.learning_rate if self.learning_rate_end is None else self.learning_rate_end
        return between(self.learning_rate, end, transitions / self.learning_rate_transitions)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(NetworkConfig):
    """Hyperparameters of agents that learn from a replay buffer.

    Attributes:
        gamma: Discount per step.
        batch_size: Transitions per update.
        capacity: Capacity of the replay buffer in transitions.
        warmup: Transitions with uniformly random actions and without updates, at the start.
        num_steps: Steps of n-step returns.
        target_tau: Share of the way that target networks move toward their networks in a soft update.
        max_grad_norm: Maximum norm of gradients, which are scaled down to it; `None` for no limit.
        normalize_observations: True to normalize observations by the running mean and variance.
        replay_device: Device of the replay buffer, such as `"cpu"` if it does not fit on the GPU; `None` for the device
            of the networks.
    """

    gamma: Share = 0.99
    batch_size: Positive[int] = 256
    capacity: Positive[int] = 1_000_000
    warmup: NotNegative[int] = 1_000
    num_steps: Positive[int] = 1
    target_tau: Positive[Share] = 0.005
    max_grad_norm: Positive[float | None] = None
    normalize_observations: bool = False
    replay_device: str | None = None
