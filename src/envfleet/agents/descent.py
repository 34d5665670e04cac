"""Parameters in one buffer, and steps of gradient descent in them."""

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


class Flat:
    """Parameters in one buffer.

    The tensors become views of it, so torch and compiled code read and change the same numbers.

    Args:
        parameters: Of one dtype, on one device, in no other buffer.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameters = list(parameters)
        self._tensor = _join(self.parameters)
        self._values = np.empty(0, np.float32)

    @property
    def tensor(self) -> Tensor:
        """All of them, `(P,)`."""
        if self.parameters[0].data_ptr() != self._tensor.data_ptr():  # of a copied agent
            self._tensor = _join(self.parameters)
        return self._tensor

    @property
    def values(self) -> F32:
        """The same memory, if it is the CPU's."""
        if self._values.__array_interface__["data"][0] != self.tensor.data_ptr():
            self._values = self.tensor.numpy()  # only now and then: it lets other threads have the interpreter
        return self._values

    def follow(self, other: Flat, tau: float) -> None:
        """Go a share of the way to others of the same form, all of it with `tau=1`."""
        self.tensor.lerp_(other.tensor, tau)


class Adam(Flat):
    """Parameters that are learned by Adam (Kingma & Ba 2015, arXiv:1412.6980), with a kernel of torch or compiled.

    What `torch.optim` does around that kernel at every step takes longer than the gradients of a small network.

    Args:
        parameters: Those that need no gradient are left out.
        learning_rate: Of all of them.
        max_norm: Gradients that are longer, all taken together, are shortened to it; `None` never.
        epsilon: Added to the root of the mean square.

    Attributes:
        learning_rate: Of the next step.
        means: Running means of the gradients, `(P,)`.
        squares: Those of their squares, `(P,)`.
        count: Steps that were taken.
    """

    def __init__(
        self, parameters: Iterable[Tensor], learning_rate: float, *, max_norm: float | None, epsilon: float = 1e-8
    ) -> None:
        super().__init__(parameter for parameter in parameters if parameter.requires_grad)
        self.learning_rate, self._max_norm, self._epsilon, self.count = learning_rate, max_norm, epsilon, 0
        self._gradient, self.means, self.squares = (torch.zeros_like(self._tensor) for _ in range(3))
        self._arrays = Flat((self._gradient, self.means, self.squares))

    def descend(self, loss: Tensor) -> None:
        """Take one step down a loss, with gradients of these parameters only."""
        parts = torch.autograd.grad(loss, self.parameters)
        gradient = torch.cat([part.reshape(-1) for part in parts], out=self._gradient)
        if self._max_norm is not None:
            gradient *= (self._max_norm / (torch.linalg.vector_norm(gradient) + 1e-6)).clamp(max=1.0)
        self.step(gradient)

    def step(self, gradient: Tensor) -> None:
        """Take a step against a gradient, `(P,)`."""
        self.count += 1
        count = torch.full((), float(self.count), device=gradient.device)
        arrays: Any = [*([array] for array in (self.tensor, gradient, self.means, self.squares)), [], [count]]
        torch._fused_adam_(*arrays, lr=self.learning_rate, eps=self._epsilon, **_ADAM)

    def next_step(self, layers: NDArray[np.int64]) -> AdamStep:
        """Count a step, and return what compiled code reads and changes for it.

        Args:
            layers: Of the networks whose parameters these are; see `layers_of`.
        """
        self.count += 1
        gradients, means, squares = self._arrays.values.reshape(3, -1)
        settings = (self.learning_rate, self._epsilon, self._max_norm or 0.0)
        return AdamStep(self.values, gradients, means, squares, layers, self.count, *settings)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        return {"means": self.means, "squares": self.squares, "count": self.count, "learning_rate": self.learning_rate}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of another."""
        self.means.copy_(state["means"])
        self.squares.copy_(state["squares"])
        self.count, self.learning_rate = state["count"], state["learning_rate"]


def layers_of(*networks: nn.Module) -> NDArray[np.int64]:
    """Return where the dense layers of networks of one depth are among their parameters, as `AdamStep` has them."""
    tables, place = list[list[tuple[int, ...]]](), 0
    for network in networks:
        activation = TANH if any(isinstance(part, nn.Tanh) for part in network.modules()) else RELU
        table, layers = list[tuple[int, ...]](), [part for part in network.modules() if isinstance(part, nn.Linear)]
        for layer in layers:
            outputs, inputs = layer.weight.shape
            kind = LINEAR if layer is layers[-1] else activation
            table.append((inputs, outputs, place, place + inputs * outputs, kind))
            place += (inputs + 1) * outputs
        tables.append(table)
    return np.array(tables, np.int64)


def workspace(rows: int, *layers: NDArray[np.int64]) -> Workspace:
    """Return memory for updates with so many rows of networks with these layers."""
    tables = [table[0, :, :2] for table in layers]
    return Workspace(
        np.empty((_PASSES, rows * max(int(table[:, 1].sum()) for table in tables)), np.float32),
        np.empty((2, rows * max(int(table.max()) for table in tables)), np.float32),
    )


def _join(tensors: Sequence[Tensor]) -> Tensor:
    """Return one array of all tensors, which are views of it from now on."""
    sizes, first = [tensor.numel() for tensor in tensors], tensors[0].data
    places = itertools.accumulate(sizes, initial=int(first.storage_offset()))
    if all(_is_at(tensor, first, place) for tensor, place in zip(tensors, places, strict=False)):
        return first.as_strided((sum(sizes),), (1,))  # they are one already
    buffer = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    for tensor, part in zip(tensors, torch.split(buffer, sizes), strict=True):
        tensor.data = part.view(tensor.shape)
    return buffer


def _is_at(tensor: Tensor, first: Tensor, place: int) -> bool:
    """Return whether a tensor is a part of another one's memory, beginning there."""
    is_shared = tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
    return is_shared and tensor.storage_offset() == place and tensor.is_contiguous()
