"""Parameters of networks in one buffer, and Adam on such a buffer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from envfleet.agents.compiled import F32, LINEAR, RELU, TANH, AdamStep, Workspace

_PASSES = 3
_ADAM: Any = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "amsgrad": False, "maximize": False}


class ParameterBuffer:
    """Buffer that holds several parameters.

    The tensors become views of it, so torch and compiled code read and write the same memory.

    Args:
        parameters: Tensors of one dtype on one device that belong to no other buffer.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameters = list(parameters)
        self._tensor = _join(self.parameters)
        self._values = np.empty(0, np.float32)

    @property
    def tensor(self) -> Tensor:
        """The buffer as a tensor, `(P,)`."""
        if self.parameters[0].data_ptr() != self._tensor.data_ptr():  # the agent was copied
            self._tensor = _join(self.parameters)
        return self._tensor

    @property
    def values(self) -> F32:
        """The buffer as an array; only on the CPU."""
        if self._values.__array_interface__["data"][0] != self.tensor.data_ptr():
            self._values = self.tensor.numpy()  # rarely, since it releases the GIL
        return self._values

    def soft_update(self, other: ParameterBuffer, tau: float) -> None:
        """Move the parameters toward others of the same shapes by the share `tau`; 1 copies them."""
        self.tensor.lerp_(other.tensor, tau)


class Adam(ParameterBuffer):
    """Adam (Kingma & Ba 2015, arXiv:1412.6980) by torch's fused kernel or by compiled code.

    The overhead of `torch.optim` per step takes longer than the gradients of a small network.

    Args:
        parameters: Parameters to optimize; those without `requires_grad` are ignored.
        learning_rate: Initial learning rate.
        max_norm: Maximum norm of the gradients, which are scaled down to it; `None` for no limit.
        epsilon: Constant added to the denominator.

    Attributes:
        learning_rate: Learning rate of the next step.
        means: Running means of the gradients, `(P,)`.
        squares: Running means of the squared gradients, `(P,)`.
        count: Number of steps taken.
    """

    def __init__(
        self, parameters: Iterable[Tensor], learning_rate: float, *, max_norm: float | None, epsilon: float = 1e-8
    ) -> None:
        super().__init__(parameter for parameter in parameters if parameter.requires_grad)
        self.learning_rate, self._max_norm, self._epsilon, self.count = learning_rate, max_norm, epsilon, 0
        self._gradient, self.means, self.squares = (torch.zeros_like(self._tensor) for _ in range(3))
        self._arrays = ParameterBuffer((self._gradient, self.means, self.squares))

    def minimize(self, loss: Tensor) -> None:
        """Take one step to minimize a loss; gradients of other parameters are not computed."""
        gradients = torch.autograd.grad(loss, self.parameters)
        gradient = torch.cat([part.reshape(-1) for part in gradients], out=self._gradient)
        if self._max_norm is not None:
            gradient *= (self._max_norm / (torch.linalg.vector_norm(gradient) + 1e-6)).clamp(max=1.0)
        self.step(gradient)

    def step(self, gradient: Tensor) -> None:
        """Take one step with a given gradient, `(P,)`."""
        self.count += 1
        count = torch.full((), float(self.count), device=gradient.device)
        arrays: Any = [*([array] for array in (self.tensor, gradient, self.means, self.squares)), [], [count]]
        torch._fused_adam_(*arrays, lr=self.learning_rate, eps=self._epsilon, **_ADAM)

    def next_step(self, layers: NDArray[np.int64]) -> AdamStep:
        """Count a step and return the buffers and settings with which compiled code takes it.

        Args:
            layers: Layers of the networks that the parameters belong to, as `layer_table` returns them.
        """
        self.count += 1
        gradients, means, squares = self._arrays.values.reshape(3, -1)
        settings = (self.learning_rate, self._epsilon, self._max_norm or 0.0)
        return AdamStep(self.values, gradients, means, squares, layers, self.count, *settings)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`."""
        return {"means": self.means, "squares": self.squares, "count": self.count, "learning_rate": self.learning_rate}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.means.copy_(state["means"])
        self.squares.copy_(state["squares"])
        self.count, self.learning_rate = state["count"], state["learning_rate"]


def layer_table(*networks: nn.Module) -> NDArray[np.int64]:
    """Return the table of dense layers that `AdamStep` describes, for networks of equal depth."""
    tables, offset = list[list[tuple[int, ...]]](), 0
    for network in networks:
        activation = TANH if any(isinstance(part, nn.Tanh) for part in network.modules()) else RELU
        table, layers = list[tuple[int, ...]](), [part for part in network.modules() if isinstance(part, nn.Linear)]
        for layer in layers:
            outputs, inputs = layer.weight.shape
            kind = LINEAR if layer is layers[-1] else activation
            table.append((inputs, outputs, offset, offset + inputs * outputs, kind))
            offset += (inputs + 1) * outputs
        tables.append(table)
    return np.array(tables, np.int64)


def make_workspace(rows: int, *layers: NDArray[np.int64]) -> Workspace:
    """Return memory for updates of networks with the given layers, with a given number of rows."""
    tables = [table[0, :, :2] for table in layers]
    return Workspace(
        np.empty((_PASSES, rows * max(int(table[:, 1].sum()) for table in tables)), np.float32),
        np.empty((2, rows * max(int(table.max()) for table in tables)), np.float32),
    )


def _join(tensors: Sequence[Tensor]) -> Tensor:
    """Return one tensor with the values of all tensors, and make them views of it."""
    sizes, first = [tensor.numel() for tensor in tensors], tensors[0].data
    offsets = itertools.accumulate(sizes, initial=int(first.storage_offset()))
    if all(_is_at(tensor, first, offset) for tensor, offset in zip(tensors, offsets, strict=False)):
        return first.as_strided((sum(sizes),), (1,))  # adjacent already
    buffer = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    for tensor, part in zip(tensors, torch.split(buffer, sizes), strict=True):
        tensor.data = part.view(tensor.shape)
    return buffer


def _is_at(tensor: Tensor, first: Tensor, offset: int) -> bool:
    """Return whether a tensor shares the memory of another, at an offset in its storage."""
    is_shared = tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
    return is_shared and tensor.storage_offset() == offset and tensor.is_contiguous()
