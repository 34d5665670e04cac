"""Actions squashed into (-1, 1) by a tanh, and their densities."""

from __future__ import annotations

import math

import torch
from torch import Tensor
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
    means, log_stds = moments(outputs)
    free = means + log_stds.exp() * noise
    log_density = -0.5 * noise.square() - log_stds - 0.5 * math.log(2 * math.pi)
    # The logarithm of the slope of tanh, 1 - tanh(x)^2, in a form that keeps its digits for large x.
    log_slope = 2 * (math.log(2) - free - functional.softplus(-2 * free))
    return torch.tanh(free), (log_density - log_slope).sum(dim=1)
