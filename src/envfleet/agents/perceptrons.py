"""Networks of dense layers with ReLU between them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def perceptrons(rows: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Pass rows through one network, or through several of the same form.

    Args:
        rows: `(N, inputs)`.
        parameters: Weight and bias of every layer in turn. Of one network in the shapes of `torch.nn.Linear`,
            `(outputs, inputs)` and `(outputs,)`; of E networks `(E, inputs, outputs)` and `(E, 1, outputs)`.

    Returns:
        `(N, outputs)`, or `(E, N, outputs)`.
    """
    results = rows
    for number, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
        inputs = torch.relu(results) if number else results
        results = inputs @ (weight.T if weight.dim() == 2 else weight) + bias
    return results
