"""The board: words of shared memory by which an owner and its workers know what is asked and done, and how they wait.

Everything here is state that can be read again; nothing is a stream that an interruption could tear. Each word has one
writer. A bell (a byte in a pipe, a semaphore) rings only for someone who has announced that it sleeps.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import platform
import select
import statistics
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeAlias

Line: TypeAlias = "memoryview[int]"
"""The words of one worker, or of the owner."""

WORDS = 24
"""Words of int64 in a line: three cache lines, each with one writer."""

# The owner writes:
ASKED = 0  # number of the last request << 4 | generation << 3 | verb: one word, so that they cannot disagree
TABLE = 1  # version of the table of info columns; its lowest byte is the number of slots in use
# The worker writes, when it is done:
DONE = 8  # the value of ASKED that is done
FLAGS = 9  # what came with it
ASLEEP = 10  # whether it sleeps; the owner's own line has this word, too: what all must have done to wake it, or 1
# The owner writes in its own line:
IS_AWAKE = 0  # whether to wait awake before sleeping
# The worker writes while it works, for whoever wants to know where it is:
ROW = 16  # the row it runs + 1, or 0
IS_REBUILDING = 17  # whether it replaces the sub-environment of that row
STEPS = 18
BUSY_NS = 19

MAIL, COLUMNS, ERROR = 1, 2, 4
"""Flags: a reply lies in the mail; numbers lie in the columns of the infos; the reply is an exception."""


class Verb(IntEnum):
    """What a worker is asked to do."""

    STEP = 0
    STEP_ROWS = 1  # those rows whose `row_asked` differs from `row_done`
    STEP_BY_MAIL = 2  # all rows, with actions that lie in the mail
    RESET = 3
    CALL = 4
    BUILD = 5
    ATTACH = 6
    CLOSE = 7


IS_ORDERED = platform.machine() in ("x86_64", "AMD64")
"""Whether the processor keeps stores in order, and loads, so that only a load after a store needs a fence."""


def make_fence() -> Callable[[], None]:
    """Return a function that orders all memory accesses before a call of it before all that follow; for one thread.

    It releases and then acquires a lock, not the other way round: accesses may move into a locked region, not out.
    """
    lock = threading.Lock()
    lock.acquire()

    def fence() -> None:
        if lock.locked():  # else Ctrl-C struck between the next two before
            lock.release()
        lock.acquire()

    return fence


def lines_of(memory: Callable[[int], Any], num_workers: int) -> list[Line]:
    """Return the lines of a board: one per worker, then the owner's.

    Args:
        memory: Allocates or maps so many bytes, in whole pages.
        num_workers: How many workers have a line.
    """
    size_bytes = -(-8 * WORDS * (1 + num_workers) // mmap.PAGESIZE) * mmap.PAGESIZE
    words = memoryview(memory(size_bytes)).cast("B").cast("q")
    return [words[WORDS * k : WORDS * (k + 1)] for k in range(num_workers + 1)]


def ring_pipe(fd: int) -> None:
    """Wake who sleeps at the other end of a pipe."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError):  # it has been rung often enough, or is gone
        os.write(fd, b"x")


class Poller:
    """Descriptors that somebody sleeps on, and what to do when they become readable."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], bool]] = {}

    def watch(self, fd: int, handler: Callable[[], bool] | None = None) -> None:
        """Wake up when a descriptor becomes readable.

        Args:
            fd: The descriptor.
            handler: Called then; returns whether somebody has to attend to it. Without one it is a bell to be silenced.
        """
        self._poll.register(fd, select.POLLIN)
        self._handlers[fd] = handler or (lambda: os.read(fd, 4096) == b"")

    def forget(self, fd: int) -> None:
        """Watch a descriptor no longer; idempotent."""
        with contextlib.suppress(KeyError, ValueError):  # unknown, or closed
            self._poll.unregister(fd)
        self._handlers.pop(fd, None)

    def sleep(self, timeout_s: float) -> bool:
        """Sleep until something is readable, and handle it; returns whether somebody has to attend to something."""
        needs_attention = False
        for fd, _ in self._poll.poll(timeout_s * 1000):
            handler = self._handlers.get(fd)
            if handler is not None:  # else another handler forgot it just now
                needs_attention |= handler()
        return needs_attention


OWNER_AWAKE_NS, WORKER_AWAKE_NS = 1_000_000, 400_000
"""How long to wait awake at most. A worker that does may take its owner's policy a core, so it sleeps sooner."""


_WINDOW_CYCLES, _TRIAL_CYCLES = 64, 16


class Choice:
    """Chooses whether a fleet waits awake or asleep, whichever is measured to make its owner faster.

    Windows of cycles are timed in either way, each from one step to the next, so that what workers awake take from the
    owner's policy counts, too. They are compared by their medians, because a mean is mostly what else the machine
    does. The faster way is kept, a tie sleeps, and the other is tried now and then, less often the longer it is not.

    It begins asleep: awake, a cycle on a busy machine can take a hundred times as long, because a core that is yielded
    comes back late. For the same reason a window awake ends as soon as it takes longer than its cycles would asleep.

    Args:
        owner: The owner's line, in which it is written.
    """

    def __init__(self, owner: Line) -> None:
        self._owner = owner
        owner[IS_AWAKE] = False
        self._cost_ns = {True: math.inf, False: math.inf}
        self._keeps_awake = self._is_awake = self._is_trial = False
        self._windows, self._rest = 0, 1  # since the last trial, and until the next
        self._length, self._limit_ns = _TRIAL_CYCLES, math.inf
        self._cycles: list[int] = []
        self._begun_ns = self._window_ns = time.perf_counter_ns()

    def begin(self, start_ns: int) -> None:
        """End a cycle and begin the next at `start_ns`."""
        self._cycles.append(start_ns - self._begun_ns)
        self._begun_ns = start_ns
        if len(self._cycles) == self._length or start_ns - self._window_ns > self._limit_ns:
            self._cost_ns[self._is_awake] = statistics.median(self._cycles)
            self._cycles.clear()
            self._choose()
            self._window_ns = start_ns
        self._owner[IS_AWAKE] = self._is_awake

    def _choose(self) -> None:
        is_faster_awake = self._cost_ns[True] < 0.95 * self._cost_ns[False]
        if is_faster_awake is not self._keeps_awake:
            self._keeps_awake, self._rest = is_faster_awake, 1
        elif self._is_trial:
            self._rest = min(2 * self._rest, 64)
        self._windows = 0 if self._is_trial else self._windows + 1
        self._is_trial = self._windows >= self._rest
        self._is_awake = self._keeps_awake is not self._is_trial
        self._length = _TRIAL_CYCLES if self._is_trial else _WINDOW_CYCLES
        self._limit_ns = self._length * self._cost_ns[False] if self._is_awake else math.inf


class Waiting:
    """Waits until a look succeeds: first awake (look, yield, look again) if the owner's line says so, then asleep.

    Args:
        line: Where to announce that it sleeps.
        owner: The owner's line, whose `IS_AWAKE` holds for it and all its workers.
        sleep: Sleeps up to so many seconds until the bell rings, and silences it; returns whether something else than
            the bell needs attention, such as the end of a process.
        awake_ns: How long to wait awake at most.
        choice: Decides `IS_AWAKE`; the owner has it, if it may wait awake at all.

    Attributes:
        choice: As given.
        waited_ns: Time spent waiting.
        sleep: As given.
        fence: Orders the memory accesses of the thread that waits.
    """

    SLEEP_S = 1.0  # no ring is lost (see `make_fence`), so an idle worker need not look more often

    def __init__(
        self,
        line: Line,
        owner: Line,
        sleep: Callable[[float], bool],
        *,
        awake_ns: int = 0,
        choice: Choice | None = None,
    ) -> None:
        self._line, self._owner, self.sleep, self.fence = line, owner, sleep, make_fence()
        self._awake_ns, self.choice = awake_ns, choice
        self.waited_ns = 0

    def wait(
        self, is_there: Callable[[], bool], start_ns: int, timeout_s: float = math.inf, *, awaited: int = 1
    ) -> bool:
        """Wait until `is_there`.

        Args:
            is_there: Looks at words of the board.
            start_ns: `perf_counter_ns` when it was asked for: the processor may be lost between asking and waiting.
            timeout_s: How long to wait, from `start_ns`.
            awaited: The value of `ASKED` that all must have done before somebody rings; 1: each rings.

        Returns:
            Whether it is there; if not, the time is over or something needs attention.
        """
        there = is_there()
        if self._owner[IS_AWAKE]:
            now, limit = start_ns, start_ns + self._awake_ns
            while not there and now < limit:
                os.sched_yield()
                there, now = is_there(), time.perf_counter_ns()
        if not there:
            self._line[ASLEEP] = awaited
            self.fence()  # announce first, look after: whoever is done after that look sees the announcement
            try:
                is_over = False
                while not (there := is_there()) and not is_over:
                    left_s = timeout_s - (time.perf_counter_ns() - start_ns) / 1e9
                    is_over = self.sleep(max(0.0, min(self.SLEEP_S, left_s))) or left_s <= 0
            finally:
                self._line[ASLEEP] = 0
        self.waited_ns += time.perf_counter_ns() - start_ns
        if not IS_ORDERED:
            self.fence()
        return there

    def never_awake(self) -> None:
        """Have everybody wait asleep from now on."""
        self.choice = None
        self._owner[IS_AWAKE] = False
