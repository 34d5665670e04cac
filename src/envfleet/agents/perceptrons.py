"""Networks of dense layers with ReLU between them, of which a whole pass is one operation of autograd.

In batches of 256, what surrounds the products of layers takes longer than the products: views, copies, nodes of the
graph. Here a pass, forwards or backwards, has little besides them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def perceptrons(rows: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Pass rows through one network, or through several of the same form.

    Gradients of gradients are refused.

    Args:
        rows: `(N, inputs)`.
        parameters: Weight and bias of every layer in turn; all of them get gradients, or none. Of one network in the
            shapes of `torch.nn.Linear`, `(outputs, inputs)` and `(outputs,)`; of E networks `(E, inputs, outputs)` and
            `(E, 1, outputs)`.

    Returns:
        `(N, outputs)`, or `(E, N, outputs)`.
    """
    if torch.is_grad_enabled():
        results: Tensor = _Perceptrons.apply(rows, *parameters)  # type: ignore[no-untyped-call]
        return results
    return _forward(rows, parameters)[-1]


class _Perceptrons(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, *parameters: Tensor) -> Tensor:
        *hidden, results = _forward(rows, parameters)
        context.save_for_backward(rows, *parameters, *hidden)
        context.num_parameters = len(parameters)
        return results

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, *saved = context.saved_tensors
        parameters, hidden = saved[: context.num_parameters], saved[context.num_parameters :]
        needs_rows, needs_parameters = context.needs_input_grad[:2]
        inputs = [_for_each(rows, parameters), *hidden]
        found: list[Tensor | None] = [None] * len(parameters)
        for layer in reversed(range(len(inputs))):
            weight = parameters[2 * layer]
            if needs_parameters:
                found[2 * layer : 2 * layer + 2] = _of_layer(inputs[layer], gradient, weight)
            if layer:
                gradient = _product(gradient, weight.mT if weight.dim() == 3 else weight)
                gradient = torch.ops.aten.threshold_backward(gradient, inputs[layer], 0)
        if not needs_rows:
            return (None, *found)
        weight = parameters[0]
        of_rows = _product(gradient, weight.mT).sum(dim=0) if weight.dim() == 3 else gradient @ weight
        return (of_rows, *found)


def _forward(rows: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return what every layer gives, after its ReLU but for the last."""
    results = [_for_each(rows, parameters)]
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        given = results[-1].relu_() if len(results) > 1 else results[0]
        if weight.dim() == 2:
            results.append(torch.addmm(bias, given, weight.t()))
        else:
            results.append(_product(given, weight).add_(bias))
    return results[1:]


def _for_each(rows: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return the rows as every one of E networks gets them, `(E, N, inputs)`; as they are if there is one."""
    return rows if parameters[0].dim() == 2 else rows.expand(len(parameters[0]), -1, -1)


def _of_layer(inputs: Tensor, gradient: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the weight and the bias of a layer, by that of what it gave."""
    if weight.dim() == 2:
        return gradient.t() @ inputs, gradient.sum(dim=0)
    return _product(inputs.mT, gradient), gradient.sum(dim=1, keepdim=True)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right`; element by element where one is a batch of vectors, at which MKL is slow."""
    if left.dim() == 2:
        return torch.mm(left, right)
    if left.shape[2] == 1:
        return left * right
    if right.shape[2] == 1:
        return (left * right.mT).sum(dim=2, keepdim=True)
    return torch.bmm(left, right)
