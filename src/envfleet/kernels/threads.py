"""Threads that step slices of a batch; compiled code lets them run at the same time."""

from __future__ import annotations

import collections
import itertools
import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

from envfleet.errors import InvalidArgument
from envfleet.machine import whole_cores

WORTH_NS = 250_000
"""Work that is worth a thread of its own: several times what it costs to wake one."""
_NUM_TRIES = 8
_SLOWER = 2
"""Threads that take this many times as long as one are worth a warning; a busy machine causes less."""


class Team:
    """The calling thread and others, as many as the work is worth.

    The first calls run in the calling thread alone, and show how many that is. Results do not depend on it.

    Args:
        num_rows: Rows to share out, in slices of nearly one length.
        asked: How many threads are to share every call; by default up to one per usable core.

    Attributes:
        most: How many threads there are at most.
        numbers: How many threads share calls of so many steps; 0 before that is known.

    Raises:
        InvalidArgument: More threads are asked for than there are rows.
    """

    def __init__(self, num_rows: int, asked: int | None = None) -> None:
        if asked is not None and not 1 <= asked <= num_rows:
            raise InvalidArgument(f"workers={asked}: pass 1 to num_envs={num_rows} threads, or leave it out")
        self.most = min(whole_cores(), num_rows) if asked is None else asked
        known = self.most if asked or self.most == 1 else 0
        self.numbers = collections.defaultdict[int, int](lambda: known)
        self._tries_ns = collections.defaultdict[int, list[int]](list)
        self._times_ns: list[int] = []  # of the first steps: half of them in all threads, then half in one
        self._is_compared = asked in (None, 1)
        self._num_rows = num_rows
        self._pool: ThreadPoolExecutor | None = None
        self._pid = -1  # process in which the pool's threads run

    def run(self, work: Callable[[int, int], int], num_steps: int = 1) -> list[tuple[int, int]]:
        """Call `work(start, stop)` for every slice at the same time.

        Args:
            work: What is to be done, equally long whenever it is for so many steps.
            num_steps: Of every row.

        Returns:
            Where each slice starts, and what its call returned, in order.

        Warns:
            RuntimeWarning: The requested threads take longer than one would; raised before any work starts.
        """
        if len(self._times_ns) == _NUM_TRIES:
            self._compare()
        count = self.numbers[num_steps]
        if count == 0:
            return [(0, self._try(work, num_steps))]
        starts = [self._num_rows * k // count for k in range(count + 1)]
        if self._pool is None or self._pid != os.getpid():  # a fork leaves threads behind
            self._pool, self._pid = ThreadPoolExecutor(self.most, "envfleet-kernel"), os.getpid()
        start_ns = time.perf_counter_ns()
        if not self._is_compared and num_steps == 1 and len(self._times_ns) >= _NUM_TRIES // 2:
            result = work(0, self._num_rows)
            self._times_ns.append(time.perf_counter_ns() - start_ns)
            return [(0, result)]
        others = [self._pool.submit(work, *span) for span in itertools.pairwise(starts[1:])]
        try:
            first = work(*starts[:2])
        finally:
            wait(others)  # after an interrupt, too: they write to memory that may be freed or handed out next
        if not self._is_compared and num_steps == 1:
            self._times_ns.append(time.perf_counter_ns() - start_ns)
        return list(zip(starts[:-1], [first, *(other.result() for other in others)], strict=True))

    def _try(self, work: Callable[[int, int], int], num_steps: int) -> int:
        """Do all work in this thread, and settle on a number of threads once its time is known well enough."""
        start_ns, tries_ns = time.perf_counter_ns(), self._tries_ns[num_steps]
        result = work(0, self._num_rows)
        tries_ns.append(time.perf_counter_ns() - start_ns)
        if len(tries_ns) == _NUM_TRIES or sum(tries_ns) > 2 * self.most * _NUM_TRIES * WORTH_NS:
            self.numbers[num_steps] = max(1, min(self.most, min(tries_ns) // WORTH_NS))
        return result

    def _compare(self) -> None:
        """Warn if the requested threads make a step slower; the fastest of some steps is the least disturbed one."""
        half = _NUM_TRIES // 2
        shared_ns, alone_ns = min(self._times_ns[:half]), min(self._times_ns[half:])
        self._is_compared = True
        self._times_ns.clear()
        if shared_ns > _SLOWER * alone_ns:
            warnings.warn(
                f"workers={self.most} is slower than one thread for {self._num_rows} sub-environments: a step takes "
                f"{shared_ns / 1000:.3g} us instead of about {alone_ns / 1000:.3g} us, as threads must be woken. Pass "
                "workers=1, or leave workers out: envfleet then uses as many threads as the work is worth",
                RuntimeWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """End the other threads."""
        if self._pool is not None and self._pid == os.getpid():
            self._pool.shutdown()
