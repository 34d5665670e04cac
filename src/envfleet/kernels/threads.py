"""Threads that step slices of a batch; compiled code lets them run at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

from envfleet.errors import InvalidArgument
from envfleet.machine import whole_cores

MIN_ROWS = 8192
"""Rows below which another thread costs more than it brings."""


def count_threads(num_rows: int, asked: int | None) -> int:
    """Return how many threads to use for so many rows.

    Raises:
        InvalidArgument: More are asked for than there are rows.
    """
    if asked is None:
        return max(1, min(whole_cores(), num_rows // MIN_ROWS))
    if not 1 <= asked <= num_rows:
        raise InvalidArgument(
            f"workers={asked}: pass a number of threads from 1 to num_envs={num_rows}, or leave it out"
        )
    return asked


class Crew:
    """The calling thread and `num_threads - 1` others.

    Args:
        num_threads: At least 1.
        num_rows: Rows to share out, in slices of nearly one length.
    """

    def __init__(self, num_threads: int, num_rows: int) -> None:
        self.spans = [(num_rows * k // num_threads, num_rows * (k + 1) // num_threads) for k in range(num_threads)]
        self._pool: ThreadPoolExecutor | None = None
        self._pid = -1  # process in which the pool's threads run

    def run(self, work: Callable[[int, int], int]) -> list[int]:
        """Call `work(start, stop)` for every slice at the same time; returns what each call did, in order."""
        if len(self.spans) == 1:
            return [work(*self.spans[0])]
        if self._pool is None or self._pid != os.getpid():  # a fork leaves threads behind
            self._pool, self._pid = ThreadPoolExecutor(len(self.spans) - 1, "envfleet-kernel"), os.getpid()
        pool = self._pool
        others = [pool.submit(work, start, stop) for start, stop in self.spans[1:]]
        try:
            first = work(*self.spans[0])
        finally:
            wait(others)  # after an interrupt, too: they write to memory that may be freed or handed out next
        return [first, *(other.result() for other in others)]

    def close(self) -> None:
        """End the other threads."""
        if self._pool is not None and self._pid == os.getpid():
            self._pool.shutdown()
