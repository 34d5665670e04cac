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
    """Repair a worn engine, and sell it when it is worn again after enough repairs.

    Args:
        num_envs: Number of engines.
        repair_above: Estimated degradation above which it repairs.
        sell_above: Estimated degradation above which it sells, after `max_repairs`.
        max_repairs: Maximum number of repairs of one engine.
    """

    def __init__(
        self, num_envs: int, *, repair_above: float = 0.65, sell_above: float = 0.7, max_repairs: int = 7
    ) -> None:
        self._repair_above, self._sell_above, self._max_repairs = repair_above, sell_above, max_repairs
        self._repairs = np.zeros(num_envs, np.int64)

    def begin(self, mask: NDArray[np.bool_]) -> None:
        """Reset the engines in `mask`, bool `(num_envs,)`, because they were replaced by new ones."""
        self._repairs[mask] = 0

    def act_batch(self, observations: NDArray[Any], deterministic: bool = True) -> NDArray[np.int64]:
        """Choose an action for every engine.

        Args:
            observations: `(num_envs, step_size, 9)` or `(num_envs, 9)`.
            deterministic: Ignored, because the policy is deterministic.

        Returns:
            Actions, `(num_envs,)`.
        """
        degradation = estimate_degradation(observations)
        is_spent = self._repairs >= self._max_repairs
        repair, sell = ~is_spent & (degradation > self._repair_above), is_spent & (degradation > self._sell_above)
        self._repairs[repair] += 1
        return np.where(repair, REPAIR, np.where(sell, SELL, FLY))
