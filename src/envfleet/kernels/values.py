"""Arrays of values of sub-environments as Gymnasium's tuples of one each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def spread(values: NDArray[Any], num_envs: int) -> NDArray[Any]:
    """Values `(1, …)` or `(num_envs, …)` as `(num_envs, …)`."""
    return np.broadcast_to(values, (num_envs, *values.shape[1:]))


def to_values(values: NDArray[Any]) -> tuple[Any, ...]:
    """Return one Python number, or array, per sub-environment."""
    return tuple(values.tolist()) if values.ndim == 1 else tuple(values.copy())
