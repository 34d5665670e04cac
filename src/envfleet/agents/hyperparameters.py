"""Hyperparameters that agents share, and checks of all of them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, get_args

from envfleet.errors import InvalidArgument

Activation = Literal["relu", "tanh"]


def takes_none(config_class: Any, name: str) -> bool:
    """Return whether a hyperparameter may be `None`, by its annotation."""
    return "None" in str(config_class.__dataclass_fields__[name].type)


def check_above(config: object, bound: float, *names: str) -> None:
    """Check that these hyperparameters are finite numbers above a bound, or `None` where that is allowed.

    Raises:
        InvalidArgument: One is not; the message names it.
    """
    for name in names:
        value = getattr(config, name)
        if not (takes_none(type(config), name) if value is None else bound < value < math.inf):
            raise InvalidArgument(f"{type(config).__name__}.{name}={value!r}: pass a number above {bound:g}")


def check_between(config: object, low: float, high: float, *names: str) -> None:
    """Check that these hyperparameters lie from `low` to `high`, both included.

    Raises:
        InvalidArgument: One does not; the message names it.
    """
    for name in names:
        value = getattr(config, name)
        if value is None or not low <= value <= high:
            raise InvalidArgument(f"{type(config).__name__}.{name}={value!r}: pass a number from {low:g} to {high:g}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Hyperparameters of every agent: its networks are made of an encoder and dense layers, and learned by Adam.

    Attributes:
        learning_rate: Of Adam, at first.
        learning_rate_end: Of Adam after `learning_rate_transitions`, in a straight line until then; `None`: it stays.
        learning_rate_transitions: See there.
        hidden: Widths of the hidden layers of every network.
        activation: After each of them: `"relu"` or `"tanh"`.
        layer_norm: Whether their outputs are normalised before the activation (Ba et al. 2016, arXiv:1607.06450).
        network: `"module:name"` of what makes the encoder: a callable that takes the observation space and returns a
            `torch.nn.Module` from observations to features, `(N, size)`. `None`: vectors need none, images go through
            convolutions, choices become one-hot or learned vectors, parts of a Dict or Tuple are encoded one by one.
        compiled: Whether updates are compiled by numba where they can be: with networks of dense layers on the CPU, if
            numba and SciPy are installed. Elsewhere, and if not, torch makes them; `is_compiled` of the agent says so.
    """

    learning_rate: float = 3e-4
    learning_rate_end: float | None = None
    learning_rate_transitions: int = 10_000_000
    hidden: tuple[int, ...] = (256, 256)
    activation: Activation = "relu"
    layer_norm: bool = False
    network: str | None = None
    compiled: bool = True

    def __post_init__(self) -> None:
        check_above(self, 0, "learning_rate", "learning_rate_end", "learning_rate_transitions")
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
        if self.learning_rate_end is None:
            return self.learning_rate
        share = min(transitions / self.learning_rate_transitions, 1.0)
        return self.learning_rate + share * (self.learning_rate_end - self.learning_rate)


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
        replay_device: Where the replay buffer lives, such as `"cpu"` if a GPU has no room for it; `None`: with the
            networks.
    """

    gamma: float = 0.99
    batch_size: int = 256
    capacity: int = 1_000_000
    warmup: int = 1_000
    num_steps: int = 1
    target_tau: float = 0.005
    max_grad_norm: float | None = None
    replay_device: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above(self, 0, "batch_size", "capacity", "num_steps", "target_tau", "max_grad_norm")
        check_between(self, 0, 1, "gamma", "target_tau")
        check_between(self, 0, math.inf, "warmup")
