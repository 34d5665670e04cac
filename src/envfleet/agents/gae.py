"""Generalised advantage estimation over slabs, with episodes that end, are cut off, and reset."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def generalised_advantages(
    rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float,
    lambda_: float,
) -> Tensor:  # fmt: skip
    """Estimate how much better every action was than expected (Schulman et al. 2016, arXiv:1506.02438, equation 16).

    An episode that terminated has no value after its end; one that was truncated has the value of its last observation.
    Either way nothing of the episode that follows is counted.

    Args:
        rewards: `(T, N)`.
        values: Of the observations acted on, `(T, N)`.
        next_values: Of what every action led to, `(T, N)`: where an episode ended, of its last observation, not of the
            first one of the next episode.
        terminated: bool `(T, N)`.
        truncated: bool `(T, N)`.
        gamma: Discount per step.
        lambda_: 0 trusts the values alone, 1 the rewards alone.

    Returns:
        Advantages, `(T, N)`. Of steps that were resets they mean nothing, and nothing of them reaches other steps.
    """
    errors = rewards + gamma * torch.where(terminated, torch.zeros_like(next_values), next_values) - values
    carried = gamma * lambda_ * (~(terminated | truncated)).to(errors.dtype)
    advantages = torch.empty_like(errors)
    following = torch.zeros_like(errors[0])
    for step in range(len(errors) - 1, -1, -1):
        following = torch.addcmul(errors[step], carried[step], following, out=advantages[step])
    return advantages
