"""Actions squashed into (-1, 1) by a tanh, and their densities."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

LOG_STD_RANGE = (-5.0, 2.0)
CENTRE, REACH = sum(LOG_STD_RANGE) / 2, (LOG_STD_RANGE[1] - LOG_STD_RANGE[0]) / 2


def moments(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Means and logarithms of standard deviations, `(N, size)` each, of a network's outputs, `(N, 2 * size)`."""
    means, raw = outputs.chunk(2, dim=1)
    return means, CENTRE + REACH * torch.tanh(raw)


def propose(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions of a normal distribution before the tanh, with gradients of both results.

    Args:
        outputs: What `moments` takes, `(N, 2 * size)`.
        noise: Standard normal, `(N, size)`.

    Returns:
        Actions, `(N, size)`, and the logarithms of their densities, `(N,)` (Haarnoja et al. 2018, appendix C).
    """
    results: tuple[Tensor, Tensor] = _Proposal.apply(outputs, noise)  # type: ignore[no-untyped-call]
    return results


class _Proposal(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        means, raw = outputs.chunk(2, dim=1)
        squashed = torch.tanh(raw)
        log_stds = squashed * REACH + CENTRE
        spread = log_stds.exp() * noise
        free = means + spread
        actions = torch.tanh(free)
        context.save_for_backward(actions, squashed, spread)
        # Minus the logarithm of the normal density, and the logarithm of the slope of tanh, 1 - tanh(x)^2, in a form
        # that keeps its digits for large x. Constants are added to the sum.
        normal = log_stds.addcmul_(noise, noise, value=0.5)
        twice = free + free
        slope = twice.sub_(functional.softplus(twice), alpha=2)
        constant = means.shape[1] * (0.5 * math.log(2 * math.pi) + 2 * math.log(2))
        return actions, -constant - normal.add_(slope).sum(dim=1)

    @staticmethod
    @once_differentiable
    def backward(context: Any, of_actions: Tensor, of_log_probs: Tensor) -> tuple[Tensor, None]:
        actions, squashed, spread = context.saved_tensors
        of_log_probs = of_log_probs[:, None]
        # The logarithm of the slope of tanh has the slope -2 tanh(x).
        of_means = torch.ops.aten.tanh_backward(of_actions, actions).addcmul_(actions, of_log_probs, value=2)
        of_log_stds = torch.addcmul(-of_log_probs, of_means, spread)
        of_raw = torch.ops.aten.tanh_backward(of_log_stds, squashed).mul_(REACH)
        return torch.cat([of_means, of_raw], dim=1), None
