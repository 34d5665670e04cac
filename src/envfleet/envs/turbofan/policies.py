"""Threshold policy: estimate wear from two sensors, repair above a threshold, sell after enough repairs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.turbofan.kernel import FLY, REPAIR, SELL
from envfleet.envs.turbofan.sensors import DTAMB, HPC_POUT_ST, HPC_TOUT, MODEL

_MOST_ROWS = 6


def estimate_degradation(observations: NDArray[Any]) -> NDArray[np.float64]:
    """Estimate the hidden degradation from the high-pressure compressor's outlet temperature and pressure.

    Args:
        observations: `(num_envs, step_size, 9)`, or the last rows alone, `(num_envs, 9)`.

    Returns:
        Estimates `(num_envs,)` from the last six rows: about 0 for a new engine, 1 at the end of its life.
    """
    rows = observations.reshape(len(observations), -1, observations.shape[-1])[:, -_MOST_ROWS:].astype(np.float64)
    ambient = rows[..., DTAMB] - 10.0
    estimates = [
        (MODEL[sensor, 0] + MODEL[sensor, 1] * ambient - rows[..., sensor]) / -MODEL[sensor, 2]
        for sensor in (HPC_TOUT, HPC_POUT_ST)
    ]
    mean: NDArray[np.float64] = np.mean(estimates, axis=(0, 2))
    return mean


class ThresholdPolicy:
    """Repair an engine that seems worn, and sell it when it seems so again after enough repairs.

    Args:
        num_envs: How many engines it looks after.
        repair_above: Estimated degradation above which it repairs.
        sell_above: Above which it sells, once the repairs are spent.
        max_repairs: Repairs of one engine.
    """

    def __init__(
        self, num_envs: int, *, repair_above: float = 0.65, sell_above: float = 0.7, max_repairs: int = 7
    ) -> None:
        self._repair_above, self._sell_above, self._max_repairs = repair_above, sell_above, max_repairs
        self._repairs = np.zeros(num_envs, np.int64)

    def begin(self, mask: NDArray[np.bool_]) -> None:
        """Forget the engines in `mask`, bool `(num_envs,)`: there are new ones in their places."""
        self._repairs[mask] = 0

    def act_batch(self, observations: NDArray[Any], deterministic: bool = True) -> NDArray[np.int64]:
        """Choose an action for every engine.

        Args:
            observations: `(num_envs, step_size, 9)` or `(num_envs, 9)`.
            deterministic: The policy always is.

        Returns:
            Actions, `(num_envs,)`.
        """
        degradation = estimate_degradation(observations)
        is_spent = self._repairs >= self._max_repairs
        repair, sell = ~is_spent & (degradation > self._repair_above), is_spent & (degradation > self._sell_above)
        self._repairs[repair] += 1
        return np.where(repair, REPAIR, np.where(sell, SELL, FLY))
