"""Running mean and variance of batches, compiled, with NumPy's order of additions: equal to Gymnasium's wrappers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.native.compiling import compile_exact, is_available

Array = NDArray[Any]

if is_available():
    from envfleet.native.sums import sum_flat
else:
    sum_flat: Any = np.add.reduce  # type: ignore[no-redef]  # in the same order


@compile_exact
def _sum_rows(x: Array, mean: Array, is_squared: bool, out: Array) -> None:
    """Sum rows, or squares of their differences from `mean`, and divide by their number."""
    num_rows, size = x.shape
    kind = out.dtype.type
    if size == 1:  # NumPy adds neighbours in blocks
        column = x.reshape(num_rows)
        if is_squared:
            column = (column - mean[0]) * (column - mean[0])
        out[0] = sum_flat(column)
    else:  # and rows one after the other
        for i in range(num_rows):
            for k in range(size):
                value = (x[i, k] - mean[k]) * (x[i, k] - mean[k]) if is_squared else x[i, k]
                out[k] = out[k] + value if i else value
    for k in range(size):
        out[k] = out[k] / kind(num_rows)


@compile_exact
def update_moments(x: Array, mean: Array, var: Array, count: float) -> None:
    """Add the moments of a batch to running moments, operation by operation as Gymnasium's `RunningMeanStd` does.

    Args:
        x: Rows, contiguous floats `(N, D)`.
        mean: Running mean, `(D,)`, of the dtype of `x`; written.
        var: Running variance, as `mean`; written.
        count: Number of rows so far.
    """
    kind = mean.dtype.type
    old, new, total = kind(count), kind(len(x)), kind(count + len(x))
    batch_mean, batch_var = np.empty_like(mean), np.empty_like(mean)
    _sum_rows(x, mean, False, batch_mean)
    _sum_rows(x, batch_mean, True, batch_var)
    for k in range(mean.size):
        delta = batch_mean[k] - mean[k]
        squares = var[k] * old + batch_var[k] * new + delta * delta * old * new / total
        mean[k] = mean[k] + delta * new / total
        var[k] = squares / total


@compile_exact
def normalize(x: Array, mean: Array, var: Array, epsilon: float, out: Array) -> None:
    """Subtract the mean and divide by the standard deviation.

    Args:
        x: Rows, contiguous floats `(N, D)`.
        mean: Mean, `(D,)`, of the dtype of `x`.
        var: Variance, as `mean`.
        epsilon: Added to the variance.
        out: Result, as `x`.
    """
    scale = np.sqrt(var + mean.dtype.type(epsilon))
    for i in range(len(x)):
        for k in range(mean.size):
            out[i, k] = (x[i, k] - mean[k]) / scale[k]


@compile_exact
def discount(returns: Array, rewards: Array, terminated: Array, gamma: float) -> None:
    """Add rewards to discounted returns, float64 `(N,)`; a termination drops what came before."""
    for i in range(len(returns)):
        returns[i] = returns[i] * gamma * (1 - terminated[i]) + rewards[i]
