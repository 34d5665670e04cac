"""The parameters of networks in one buffer, for compiled code."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from envfleet.agents import compiled
from envfleet.agents.actor_critic import ActorCritic
from envfleet.agents.compiled import F32, Learned, Sample, Workspace
from envfleet.agents.descent import Adam
from envfleet.agents.networks import DuelingNetwork, GaussianActor, TwinCritics
from envfleet.agents.packing import encode
from envfleet.agents.replay import Batch
from envfleet.errors import InvalidArgument

_PASSES = 3


class Flat:
    """The parameters of a network in one buffer, with their moments if they are learned.

    Its tensors become views of the buffer, so torch and compiled code read and change the same numbers.

    Args:
        network: On the CPU, in float32, of a kind that `can_compile` takes.
        optimiser: That learns it.
    """

    def __init__(self, network: nn.Module, optimiser: Adam | None = None) -> None:
        self._parameters, self.layers = _layout(network)
        self._optimiser = optimiser
        self._bind()
        self._gradients = np.zeros_like(self._values)

    def _bind(self) -> None:
        self._values = _join(self._parameters)
        self._address = self._parameters[0].data_ptr()
        if self._optimiser is not None:
            self._means, self._squares = (_join(part) for part in self._optimiser.moments(self._parameters))

    @property
    def values(self) -> F32:
        """All parameters, `(P,)`."""
        if self._parameters[0].data_ptr() != self._address:  # shared with another agent's, or copied
            self._bind()
        return self._values

    def next_step(self) -> Learned:
        """Count a step of the optimiser, and return what it reads and changes."""
        optimiser, values = self._optimiser, self.values
        if optimiser is None:
            raise RuntimeError("these parameters are not learned: make Flat with their optimiser")
        optimiser.count += 1
        return Learned(
            values, self._gradients, self._means, self._squares, self.layers, optimiser.count,
            optimiser.learning_rate, optimiser.epsilon,
        )  # fmt: skip


def workspace(rows: int, *networks: Flat) -> Workspace:
    """Return memory for updates with so many rows."""
    tables = [network.layers[0, :, :2] for network in networks]
    return Workspace(
        np.empty((_PASSES, rows * max(int(table[:, 1].sum()) for table in tables)), np.float32),
        np.empty((2, rows * max(int(table.max()) for table in tables)), np.float32),
    )


def can_compile(kind: type[object], networks: Mapping[str, nn.Module], wanted: bool | None, obstacle: str = "") -> bool:
    """Return whether the updates of an agent are to be compiled, and prepare for it.

    Args:
        kind: Its class.
        networks: What it learns, by name.
        wanted: As in its configuration.
        obstacle: What stands against it in this one.

    Raises:
        InvalidArgument: They must be, by the configuration, and cannot.
    """
    odd = [name for name, network in networks.items() if not is_flat(network)]
    reason = obstacle
    if wanted is False:
        reason = "not wanted"
    elif "_compile" not in vars(kind):  # what a child changes of its parent is not known to compiled code
        reason = f"{kind.__name__} has no compiled update"
    elif not compiled.is_available():
        reason = "numba or SciPy is not installed"
    elif odd:
        reason = f"its network {odd[0]!r} has more than dense layers, or is not on the CPU in float32"
    if reason and wanted:
        raise InvalidArgument(f"{kind.__name__} with compiled=True, but {reason}: leave it out to learn by torch")
    if not reason:
        compiled.use_one_thread()
    return not reason


def is_flat(network: nn.Module) -> bool:
    """Return whether `Flat` takes it: dense layers with ReLU between, an `ActorCritic` of dense layers, a number."""
    is_dense = isinstance(network, ActorCritic) and network.is_dense
    return all(part.device.type == "cpu" and part.dtype is torch.float32 for part in network.parameters()) and (
        is_dense or type(network) is TwinCritics or _is_number(network) or _has_dense_layers(network)
    )


def arrays_of(batch: Batch) -> Sample:
    """Return a batch as compiled code reads it; where it can, without copies."""
    tensors = (
        encode(batch.observations), batch.actions, batch.rewards, batch.discounts, encode(batch.next_observations),
        batch.weights,
    )  # fmt: skip
    return Sample(*(tensor.contiguous().numpy() for tensor in tensors))


def _is_number(network: nn.Module) -> bool:
    return [parameter.dim() for parameter in network.parameters()] == [0]


def _has_dense_layers(network: nn.Module) -> bool:
    leaves = [part for part in network.modules() if not list(part.children())]
    linear = [part for part in leaves if type(part) is nn.Linear and part.bias is not None]
    between = [nn.Linear, nn.ReLU] * len(linear)
    if isinstance(network, DuelingNetwork):
        expected = [*between[:-4], nn.Linear, nn.Linear]  # with both heads at the end
    else:
        expected = between[:-1] if isinstance(network, (GaussianActor, nn.Sequential)) else []
    return bool(expected) and [type(part) for part in leaves] == expected and len(linear) > 1


def _layout(network: nn.Module) -> tuple[list[Tensor], NDArray[np.int64]]:
    """Return parameters in the order of a buffer, and where the layers are in it, as `Learned` has them."""
    if isinstance(network, TwinCritics):
        return _twins(network)
    if isinstance(network, ActorCritic):
        return _actor_critic(network)
    linear = _linear(network)
    if not linear:
        return list(network.parameters()), np.zeros((1, 0, 6), np.int64)
    heads = [linear.pop(), linear.pop()][::-1] if isinstance(network, DuelingNetwork) else [linear.pop()]
    parameters = [parameter for layer in linear for parameter in (layer.weight, layer.bias)]
    parameters += [head.weight for head in heads] + [head.bias for head in heads]  # as one layer
    widths = [
        linear[0].in_features,
        *(layer.out_features for layer in linear),
        sum(head.out_features for head in heads),
    ]
    return parameters, np.array([_table(widths, 0, compiled.RELU)], np.int64)


def _linear(network: nn.Module) -> list[nn.Linear]:
    return [part for part in network.modules() if isinstance(part, nn.Linear)]


def _table(widths: Sequence[int], place: int, activation: int) -> list[tuple[int, ...]]:
    """Return the layers of a network whose parameters begin at a place."""
    table = list[tuple[int, ...]]()
    for number, (inputs, outputs) in enumerate(itertools.pairwise(widths), 2 - len(widths)):
        table.append((inputs, outputs, place, place + inputs * outputs, 1, activation if number else compiled.LINEAR))
        place += (inputs + 1) * outputs
    return table


def _actor_critic(network: ActorCritic) -> tuple[list[Tensor], NDArray[np.int64]]:
    """Put the standard deviations of actions, if they are learned, behind both networks."""
    parts = [_linear(network.actor), _linear(network.critic)]
    parameters: list[Tensor] = [parameter for part in parts for layer in part for parameter in layer.parameters()]
    activation = compiled.TANH if isinstance(network.actor[1], nn.Tanh) else compiled.RELU
    widths = [[part[0].in_features, *(layer.out_features for layer in part)] for part in parts]
    critic = sum(parameter.numel() for parameter in network.actor.parameters())
    tables = [_table(sizes, place, activation) for sizes, place in zip(widths, (0, critic), strict=True)]
    return parameters + [network.log_std] * network.log_std.requires_grad, np.array(tables, np.int64)


def _twins(critics: TwinCritics) -> tuple[list[Tensor], NDArray[np.int64]]:
    parameters, tables, place = list[Tensor](), list[list[tuple[int, ...]]](), 0
    for weight, bias in zip(critics.weights, critics.biases, strict=True):
        number, inputs, outputs = weight.shape
        start, middle = place, place + weight.numel()
        activation = compiled.LINEAR if weight is critics.weights[-1] else compiled.RELU
        tables.append(
            [
                (inputs, outputs, start + one * inputs * outputs, middle + one * outputs, 0, activation)
                for one in range(number)
            ]
        )
        parameters += [weight, bias]
        place = middle + bias.numel()
    return parameters, np.array(tables, np.int64).swapaxes(0, 1).copy()  # (L, E, 6) -> (E, L, 6)


def _join(tensors: Sequence[Tensor]) -> F32:
    """Return one array of all tensors, which are views of it from now on."""
    ends = itertools.accumulate((4 * tensor.numel() for tensor in tensors), initial=tensors[0].data_ptr())
    first, size = tensors[0].data, sum(tensor.numel() for tensor in tensors)
    if all(tensor.data_ptr() == end for tensor, end in zip(tensors, ends, strict=False)):
        buffer = first.as_strided((size,), (1,))  # they are one already
    else:
        buffer = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        for tensor, part in zip(tensors, torch.split(buffer, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.data = part.view(tensor.shape)
    array: F32 = buffer.numpy()
    return array
