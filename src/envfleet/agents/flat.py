"""The parameters of networks in one buffer, for compiled code."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from envfleet.agents import compiled
from envfleet.agents.actor_critic import ActorCritic
from envfleet.agents.agent import Agent
from envfleet.agents.compiled import F32, Learned, Sample, Workspace
from envfleet.agents.descent import Adam
from envfleet.agents.networks import Critics, DuelingNetwork, is_vector
from envfleet.agents.packing import encode
from envfleet.agents.replay import Batch
from envfleet.errors import InvalidArgument

_PASSES = 3


class Flat:
    """The parameters of a network in one buffer, with their moments if they are learned.

    Its tensors become views of the buffer, so torch and compiled code read and change the same numbers.

    Args:
        network: Of an agent that `can_compile`.
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


def can_compile(agent: Agent[Any], obstacle: str = "") -> bool:
    """Return whether the updates of an agent are to be compiled, and prepare for it.

    Args:
        agent: Its configuration is a `NetworkConfig`.
        obstacle: What stands against it in this one.

    Raises:
        InvalidArgument: They must be, by the configuration, and cannot.
    """
    kind, config = type(agent), agent.config
    is_dense = is_vector(agent.packing) and config.network is None and not config.layer_norm
    reason = obstacle
    if config.compiled is False:
        reason = "not wanted"
    elif "_compile" not in vars(kind):  # what a child changes of its parent is not known to compiled code
        reason = f"{kind.__name__} has no compiled update"
    elif not compiled.is_available():
        reason = "numba or SciPy is not installed"
    elif not is_dense or agent.device.type != "cpu":
        reason = "its networks have more than dense layers, or are not on the CPU"
    if reason and config.compiled:
        raise InvalidArgument(f"{kind.__name__} with compiled=True, but {reason}: leave it out to learn by torch")
    if not reason:
        compiled.use_one_thread()
    return not reason


def arrays_of(batch: Batch) -> Sample:
    """Return a batch as compiled code reads it; where it can, without copies."""
    tensors = (
        encode(batch.observations), batch.actions, batch.rewards, batch.discounts, encode(batch.next_observations),
        batch.weights,
    )  # fmt: skip
    return Sample(*(tensor.contiguous().numpy() for tensor in tensors))


def _stacks(network: nn.Module) -> list[nn.Module]:
    """Return the modules that a network is made of, each dense layers in a row; none if it is a number."""
    if isinstance(network, Critics):
        return [*network.critics]
    if isinstance(network, ActorCritic):
        return [network.actor, network.critic]
    return [network] if _linear(network) else []


def _activation(module: nn.Module) -> type[nn.Module]:
    return nn.Tanh if any(isinstance(part, nn.Tanh) for part in module.modules()) else nn.ReLU


def _linear(network: nn.Module) -> list[nn.Linear]:
    return [part for part in network.modules() if isinstance(part, nn.Linear)]


def _layout(network: nn.Module) -> tuple[list[Tensor], NDArray[np.int64]]:
    """Return parameters in the order of a buffer, and where the layers are in it, as `Learned` has them."""
    parameters, tables, place = list[Tensor](), list[list[tuple[int, ...]]](), 0
    for stack in _stacks(network):
        linear = _linear(stack)
        heads = [linear.pop(), linear.pop()][::-1] if isinstance(stack, DuelingNetwork) else [linear.pop()]
        parameters += [parameter for layer in linear for parameter in (layer.weight, layer.bias)]
        parameters += [head.weight for head in heads] + [head.bias for head in heads]  # as one layer
        widths = [*(layer.in_features for layer in linear), heads[0].in_features]
        activation = compiled.TANH if _activation(stack) is nn.Tanh else compiled.RELU
        tables.append(_table([*widths, sum(head.out_features for head in heads)], place, activation))
        place = sum(parameter.numel() for parameter in parameters)
    others = [parameter for parameter in network.parameters() if all(parameter is not one for one in parameters)]
    parameters += [parameter for parameter in others if parameter.requires_grad or not tables]
    return parameters, np.array(tables, np.int64).reshape(max(len(tables), 1), -1, 5)


def _table(widths: Sequence[int], place: int, activation: int) -> list[tuple[int, ...]]:
    """Return the layers of a stack whose parameters begin at a place."""
    table = list[tuple[int, ...]]()
    for number, (inputs, outputs) in enumerate(itertools.pairwise(widths), 2 - len(widths)):
        table.append((inputs, outputs, place, place + inputs * outputs, activation if number else compiled.LINEAR))
        place += (inputs + 1) * outputs
    return table


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
