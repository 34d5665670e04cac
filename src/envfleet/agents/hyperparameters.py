"""Hyperparameters that agents share, and the numbers that all of them may be."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from envfleet.errors import InvalidArgument

Activation = Literal["relu", "tanh"]
Number = TypeVar("Number", bound=float | None)


@dataclasses.dataclass(frozen=True)
class Interval:
    """The numbers that a hyperparameter may be, as a part of its type.

    Attributes:
        low: The least; left out if there is no highest.
        high: The highest; `None`: all finite ones above `low`.
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
    """Return the number that lies a share of the way from one to another: the first below 0, the last above 1."""
    return start + (end - start) * min(max(share, 0.0), 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Hyperparameters of every agent: its networks are made of an encoder and dense layers, and learned by Adam.

    Attributes:
        learning_rate: Of Adam, at first.
        learning_rate_end: Of Adam after `learning_rate_transitions`, in a straight line until then; `None`: it stays.
        learning_rate_transitions: See there.
        hidden: Widths of the hidden layers of every network.
        activation: After each of them: `"relu"` or `"tanh"`.
        layer_norm: Whether their outputs are normalized before the activation (Ba et al. 2016, arXiv:1607.06450).
        network: `"module:name"` of what makes the encoder: a callable that takes the observation space and returns a
            `torch.nn.Module` from observations to features, `(N, size)`. `None`: vectors need none, images go through
            convolutions, choices become one-hot or learned vectors, parts of a Dict or Tuple are encoded one by one.
        compiled: Whether updates are compiled by numba where they can be: with networks of dense layers on the CPU, if
            numba is installed. Elsewhere, and if not, torch makes them; `is_compiled` of the agent says so.
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
        """Return the learning rate after so many transitions."""
        end = self.learning_rate if self.learning_rate_end is None else self.learning_rate_end
        return between(self.learning_rate, end, transitions / self.learning_rate_transitions)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(NetworkConfig):
    """Hyperparameters of every agent that learns from a replay buffer.

    Attributes:
        gamma: Discount per step.
        batch_size: Transitions per update.
        capacity: Transitions that the replay buffer holds.
        warmup: Transitions during which actions are drawn uniformly and nothing is learned.
        num_steps: Rewards that are summed before a value is bootstrapped (n-step returns).
        target_tau: How far targets move towards their networks in one update.
        max_grad_norm: Gradients longer than this are shortened; `None` never.
        normalize_observations: Whether networks see observations with mean 0 and variance 1 of all so far.
        replay_device: Where the replay buffer lives, such as `"cpu"` if a GPU has no room for it; `None`: with the
            networks.
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
