"""Returns and lengths of the episodes of many sub-environments, as arrays."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


class EpisodeTally:
    """Counts the running episodes of N sub-environments, and keeps those that ended."""

    def __init__(self) -> None:
        self._ended: list[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]] = []
        self.reset(0)

    def reset(self, num_envs: int) -> None:
        """Begin an episode in every sub-environment; what ended is kept.

        Args:
            num_envs: N.
        """
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self._started_s = np.full(num_envs, time.perf_counter())

    def add(
        self, rewards: NDArray[np.float64], stepped: NDArray[np.bool_], ended: NDArray[np.bool_],
        counted: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        """Count a step.

        Args:
            rewards: float `(N,)`.
            stepped: Where it was one, bool `(N,)`; elsewhere it was a reset, or is of no interest.
            ended: Where an episode ended, bool `(N,)`.
            counted: The episodes among them to keep, bool `(N,)`.
        """
        self._returns += rewards
        self._lengths += stepped
        if counted.any():
            now = time.perf_counter()
            self._ended.append((self._lengths[counted], self._returns[counted], now - self._started_s[counted]))
        if ended.any():
            self._returns[ended], self._lengths[ended] = 0.0, 0
            self._started_s[ended] = time.perf_counter()

    def take(self, count: int) -> Iterator[tuple[int, float, float]]:
        """Take the last episodes that ended, and forget all.

        Args:
            count: At most so many.

        Yields:
            Length, return, and duration in seconds.
        """
        ended, self._ended = self._ended, []
        if ended:
            columns = (np.concatenate(column)[-count:].tolist() for column in zip(*ended, strict=True))
            yield from zip(*columns, strict=True)
