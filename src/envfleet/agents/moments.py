"""Mean and variance of all that was seen so far."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SMALLEST_VARIANCE = 1e-8


class RunningMoments(nn.Module):
    """Mean and variance of a stream, by element, in float64; saved with the networks.

    Batches are joined by the formula of Chan, Golub and LeVeque (1979), which does not lose digits.

    Args:
        size: Elements.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(size, dtype=torch.float64))

    @torch.no_grad()
    def update(self, rows: Tensor) -> None:
        """Take in more, `(M, size)`."""
        rows = rows.double()
        count, mean = len(rows), rows.mean(dim=0)
        total = self.count + count
        apart = mean - self.mean
        self.squares += (rows - mean).square().sum(dim=0) + apart.square() * self.count * count / total
        self.mean += apart * count / total
        self.count.copy_(total)

    @property
    def deviation(self) -> Tensor:
        """Standard deviation, `(size,)`; 1 before anything was seen, and where nothing varies."""
        variance = self.squares / self.count.clamp(min=1.0)
        return torch.where(variance > SMALLEST_VARIANCE, variance, torch.ones_like(variance)).sqrt()

    def normalise(self, values: Tensor) -> Tensor:
        """Bring values to mean 0 and variance 1, in their own dtype."""
        return (values - self.mean.to(values.dtype)) / self.deviation.to(values.dtype)

    def restore(self, values: Tensor) -> Tensor:
        """Undo `normalise`."""
        return values * self.deviation.to(values.dtype) + self.mean.to(values.dtype)
