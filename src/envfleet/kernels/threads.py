"""Thread pool that steps slices of a batch; compiled code releases the interpreter, so the slices run in parallel."""

from __future__ import annotations

import collections
import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

from envfleet.errors import InvalidArgument
from envfleet.machine import whole_cores

WORTH_NS = 250_000
"""Minimum work per thread: several times the cost of waking one."""
_NUM_TRIALS = 8


class Team:
    """The calling thread and a pool; the work decides how many threads share it.

    The first calls run in the calling thread alone and measure the work. Results do not depend on the number of
    threads.

    Args:
        num_rows: Number of rows, which are divided into slices of nearly equal length.
        num_threads: Number of threads that share every call. By default it follows the work, up to one per core.

    Attributes:
        most: Maximum number of threads.
        counts: Number of threads by number of steps per call; 0 while it is measured.

    Raises:
        InvalidArgument: There are fewer rows than threads.
    """

    def __init__(self, num_rows: int, num_threads: int | None = None) -> None:
        if num_threads is not None and not 1 <= num_threads <= num_rows:
            raise InvalidArgument(f"workers={num_threads}: pass 1 to num_envs={num_rows} threads, or leave it out")
        self.most = min(whole_cores(), num_rows) if num_threads is None else num_threads
        initial = self.most if num_threads or self.most == 1 else 0
        self.counts = collections.defaultdict[int, int](lambda: initial)
        self._trials_ns = collections.defaultdict[int, list[int]](list)
        self._num_rows = num_rows
        self._pool: ThreadPoolExecutor | None = None
        self._pid = -1  # process in which the pool's threads run

    def run(self, work: Callable[[int, int], int], num_steps: int = 1) -> list[tuple[int, int]]:
        """Call `work(start, stop)` for all slices in parallel.

        Args:
            work: Function that steps the rows from `start` to `stop`; calls with equal `num_steps` take equally long.
            num_steps: Steps of every row.

        Returns:
            Start of each slice and the result of its call, in order.
        """
        count = self.counts[num_steps]
        if count == 0:
            return [(0, self._measure(work, num_steps))]
        starts = [self._num_rows * k // count for k in range(count + 1)]
        if self._pool is None or self._pid != os.getpid():  # threads do not survive a fork
            self._pool, self._pid = ThreadPoolExecutor(self.most, "envfleet-kernel"), os.getpid()
        others = [self._pool.submit(work, *span) for span in itertools.pairwise(starts[1:])]
        try:
            first = work(*starts[:2])
        finally:
            wait(others)  # also after an interrupt: they write to memory that the caller may free or reuse
        return list(zip(starts[:-1], [first, *(other.result() for other in others)], strict=True))

    def _measure(self, work: Callable[[int, int], int], num_steps: int) -> int:
        """Run all work in this thread; set the number of threads after enough measurements."""
        start_ns, trials_ns = time.perf_counter_ns(), self._trials_ns[num_steps]
        result = work(0, self._num_rows)
        trials_ns.append(time.perf_counter_ns() - start_ns)
        if len(trials_ns) == _NUM_TRIALS or sum(trials_ns) > 2 * self.most * _NUM_TRIALS * WORTH_NS:
            self.counts[num_steps] = max(1, min(self.most, min(trials_ns) // WORTH_NS))
        return result

    def close(self) -> None:
        """Stop the pool's threads."""
        if self._pool is not None and self._pid == os.getpid():
            self._pool.shutdown()
