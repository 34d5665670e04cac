"""The parameters of networks in one buffer, for compiled code."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from envfleet.agents.compiled import F32, LINEAR, RELU, TANH, Learned, Workspace
from envfleet.agents.descent import Adam
from envfleet.agents.networks import DuelingNetwork

_PASSES = 3


class Flat:
    """The parameters of networks in one buffer, with their moments if they are learned.

    The tensors become views of the buffer, so torch and compiled code read and change the same numbers.

    Args:
        networks: Dense layers in a row each, all of the same number and activation.
        optimiser: That learns them.
        *others: Parameters that follow those of the networks.

    Attributes:
        layers: Where the layers of each network are, as in `Learned`.
    """

    def __init__(self, networks: Iterable[nn.Module], optimiser: Adam | None = None, *others: Tensor) -> None:
        self._parameters, self.layers = _layout(networks)
        self._parameters += others
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


def _layout(networks: Iterable[nn.Module]) -> tuple[list[Tensor], NDArray[np.int64]]:
    """Return parameters in the order of a buffer, and where the layers are in it, as `Learned` has them."""
    parameters, tables, place = list[Tensor](), list[list[tuple[int, ...]]](), 0
    for network in networks:
        activation = TANH if any(isinstance(part, nn.Tanh) for part in network.modules()) else RELU
        layers, table = _layers_of(network), list[tuple[int, ...]]()
        for number, layer in enumerate(layers, 1):
            parameters += [part.weight for part in layer] + [part.bias for part in layer]
            inputs, outputs = layer[0].in_features, sum(part.out_features for part in layer)
            kind = activation if number < len(layers) else LINEAR
            table.append((inputs, outputs, place, place + inputs * outputs, kind))
            place += (inputs + 1) * outputs
        tables.append(table)
    return parameters, np.array(tables, np.int64).reshape(max(len(tables), 1), -1, 5)


def _layers_of(network: nn.Module) -> list[list[nn.Linear]]:
    """Return the layers of a network, each as its parts, which read the same side by side."""
    linear = [part for part in network.modules() if isinstance(part, nn.Linear)]
    num_heads = 2 if isinstance(network, DuelingNetwork) else 1
    return [*([part] for part in linear[:-num_heads]), linear[-num_heads:]]


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
