"""Policies for compiled rollouts: networks given as weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.fleet.checks import check_choice, check_flag
from envfleet.kernels.kernel import KernelSpec
from envfleet.native.layers import flatten, padded, sizes_of

Activation = Literal["tanh", "relu"]
Head = Literal["argmax", "categorical", "linear", "tanh", "gaussian", "tanh_gaussian"]

_DISCRETE_HEADS: tuple[str, ...] = ("argmax", "categorical")
_NOISY_HEADS = ("gaussian", "tanh_gaussian")
_BOX_HEADS: tuple[str, ...] = ("linear", "tanh", *_NOISY_HEADS)


@dataclasses.dataclass(frozen=True, eq=False)
class MLP:
    """Fully connected network as a policy, evaluated in float32 on the flattened observation, without scaling.

    It reads observations of `Box` and `MultiBinary` spaces. If the kernel has an `action_mask`, it chooses among the
    allowed actions, and log-probabilities refer to these. If no action is allowed, all are equal: `"categorical"` draws
    uniformly, `"argmax"` takes the first.

    New weights of the same shapes do not compile again.

    Args:
        weights: One `(W, b)` per layer, `(outputs, inputs)` and `(outputs,)`, as in `torch.nn.Linear`.
        activation: Activation after every layer but the last.
        head: Meaning of the outputs. `Discrete`: `"argmax"` takes the largest, `"categorical"` draws with the softmax's
            probabilities. Floating `Box`: `"linear"` takes the outputs, `"tanh"` squashes them into the bounds,
            `"gaussian"` and `"tanh_gaussian"` add normal noise before. Actions without tanh may exceed the bounds.
        log_std: Logarithm of the noise's standard deviation, one for all or one per action element.
        critic: Weights of a second network with the same activation; its one output is the value of an observation.
        heeds_mask: True if the policy uses the mask.

    Raises:
        InvalidArgument: Shapes do not match, weights are not finite, or a name is unknown.

    Examples:
        >>> MLP([(np.eye(2, 4), np.zeros(2))], head="argmax").sizes
        (4, 2)
    """

    weights: Sequence[tuple[Any, Any]]
    activation: Activation = "tanh"
    head: Head = "argmax"
    log_std: float | Sequence[float] | NDArray[Any] | None = None
    critic: Sequence[tuple[Any, Any]] | None = None
    heeds_mask: bool = True

    def __post_init__(self) -> None:
        check_choice("activation", self.activation, get_args(Activation))
        check_choice("head", self.head, get_args(Head))
        check_flag("heeds_mask", self.heeds_mask)
        if (self.log_std is not None) != (self.head in _NOISY_HEADS):
            what = "requires log_std" if self.log_std is None else "does not use log_std"
            raise InvalidArgument(f"head={self.head!r} {what}: pass it for {' and '.join(_NOISY_HEADS)} only")
        object.__setattr__(self, "weights", _read_layers(self.weights))
        if self.critic is not None:
            object.__setattr__(self, "critic", _read_layers(self.critic, " of the critic"))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Width of the observation, then of every layer."""
        return sizes_of(self.weights)

    @property
    def is_stochastic(self) -> bool:
        """True if actions are drawn, and have log-probabilities."""
        return self.head == "categorical" or self.log_std is not None

    def check(self, spec: KernelSpec) -> None:
        """Check that the network fits the spaces of a kernel.

        Raises:
            InvalidArgument: The network does not fit.
        """
        space, outputs, heads = spec.action.space, spec.action.size, _BOX_HEADS
        if isinstance(space, spaces.Discrete):
            outputs, heads = int(space.n), _DISCRETE_HEADS
        elif not isinstance(space, spaces.Box) or spec.action.dtype.kind != "f":
            raise InvalidArgument(f"an MLP cannot choose from {space}, expected Discrete or a floating Box: {_ADVICE}")
        if not isinstance(spec.observation.space, (spaces.Box, spaces.MultiBinary)):
            raise InvalidArgument(
                f"an MLP cannot read {spec.observation.space}, expected Box or MultiBinary: {_ADVICE}"
            )
        if self.head not in heads:
            raise InvalidArgument(f"head={self.head!r} does not fit {space}: use one of {', '.join(heads)}")
        if (self.sizes[0], self.sizes[-1]) != (spec.observation.size, outputs):
            raise InvalidArgument(
                f"the MLP has {self.sizes[0]} inputs and {self.sizes[-1]} outputs, expected {spec.observation.size} "
                f"and {outputs}: one input per element of an observation, one output per element or choice of an action"
            )
        inputs, *_, values = (0, 0) if self.critic is None else sizes_of(self.critic)
        if self.critic is not None and (inputs, values) != (spec.observation.size, 1):
            raise InvalidArgument(
                f"the critic has {inputs} inputs and {values} outputs, expected {spec.observation.size} and 1: one "
                "input per element of an observation, and its value"
            )
        if self.head in ("tanh", "tanh_gaussian") and not space.is_bounded():
            raise InvalidArgument(f"head={self.head!r} requires a bounded space (got {space}): use 'linear'")
        if np.size(self._log_std) not in (1, outputs):
            raise InvalidArgument(f"log_std has {np.size(self._log_std)} elements, expected 1 or {outputs}")

    @property
    def _log_std(self) -> NDArray[np.float32]:
        return _as_float32(0.0 if self.log_std is None else self.log_std, "log_std")

    def inputs(self) -> NDArray[np.float32]:
        """Join all numbers, float32: layers, standard deviations of the outputs, a constant, and the critic's layers.

        The constant is the part of normal log-densities that does not depend on the draw. Layers have the layout of
        `flatten`.
        """
        log_std = np.broadcast_to(self._log_std.ravel(), (self.sizes[-1],))
        noise = np.zeros(padded(len(log_std) + 1), np.float32)
        noise[: len(log_std)] = np.exp(log_std)
        noise[len(log_std)] = -np.sum(log_std + 0.5 * np.log(2 * np.pi), dtype=np.float64)
        return np.concatenate([flatten(self.weights), noise, flatten(self.critic or ())])


def _read_layers(weights: Any, owner: str = "") -> tuple[tuple[Any, Any], ...]:
    pairs = list(weights) if isinstance(weights, Iterable) else []
    if not pairs or any(not isinstance(pair, (tuple, list)) or len(pair) != 2 for pair in pairs):
        raise InvalidArgument(
            f"an MLP takes one (W, b) per layer{owner}, not this {type(weights).__name__}: pass [(W, b), …], such as "
            "[(layer.weight.detach(), layer.bias.detach()), …] of torch's Linear layers"
        )
    layers = tuple(
        (_as_float32(w, f"W of layer {k}{owner}"), _as_float32(b, f"b of layer {k}{owner}"))
        for k, (w, b) in enumerate(pairs)
    )
    for k, (w, b) in enumerate(layers):
        inputs = layers[k - 1][1].size if k else w.shape[-1]
        if w.ndim != 2 or 0 in w.shape or b.shape != w.shape[:1] or w.shape[1] != inputs:
            raise InvalidArgument(
                f"layer {k}{owner} has W of shape {w.shape} and b of shape {b.shape}, expected (outputs, {inputs}) and "
                "(outputs,): pass W as torch.nn.Linear has it, W.T if yours is (inputs, outputs)"
            )
    return layers


_ADVICE = "pass a callable policy(observations) instead"


def _as_float32(value: Any, name: str) -> NDArray[np.float32]:
    try:
        array = np.array(value, np.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument(f"{name} is not an array of numbers ({error}): pass a NumPy array") from error
    if not np.isfinite(array).all():
        raise InvalidArgument(f"{name} has values that are not finite: pass finite numbers, and zeros for no bias")
    return array
