"""Shared-memory signalling between the owner process and its workers.

Problem. A step of cheap environments takes 30 to 200 µs, so waking a worker through a pipe (20 to 50 µs each way)
would dominate it. Busy waiting is fast, but takes a core from the policy, and on a busy machine from the workers
themselves.

What does not work. Pipes on the hot path: too slow, and Ctrl-C between two byte codes tears the stream. A fixed spin
limit in microseconds: one slow wake-up on a noisy machine exceeds it, and every later wait sleeps.

Solution. Each worker and the owner have a *line* of 64-bit words in shared memory, each word with one writer. A
request is a number in the word `ASKED`, written by the owner; the worker copies it to `DONE` when it has finished.
Waiting reads these words: first spinning (`sched_yield`), then sleeping in `poll` after setting `ASLEEP`. Only a
sleeping reader is woken by a byte in a pipe. Because all state can be read again, an interrupted wait is simply
repeated. `SpinPolicy` measures whether spinning pays; the owner spins only where it
has a core of its own.

What remains. On processors with weak memory ordering each wait costs two extra fences (see `make_fence`).

See ADR 20 and ADR 25.
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
"""Words of one worker, or of the owner."""

WORDS = 24
"""Words per line: three cache lines of eight 64-bit words, each written by one process only."""

# Written by the owner:
ASKED = 0  # request number << 4 | generation << 3 | verb, in one word so that readers never see a mixture
TABLE = 1  # version of the table of info columns; its lowest byte is the number of slots in use
# Written by the worker when it has finished a request:
DONE = 8  # value of ASKED that was completed
FLAGS = 9  # bit set of MAIL, COLUMNS, ERROR
# Nonzero while the process sleeps. In the owner's line: the value of ASKED that every worker must complete before the
# owner is woken, or 1 if any worker may wake it.
ASLEEP = 10
# Written by the owner in its own line:
IS_AWAKE = 0  # 1 if all processes of this fleet spin before they sleep
# Written by the worker while it runs, for diagnostics:
ROW = 16  # row being stepped, plus 1; 0 when idle
IS_REBUILDING = 17  # 1 while the sub-environment of that row is being replaced
STEPS = 18
BUSY_NS = 19

MAIL, COLUMNS, ERROR = 1, 2, 4
"""Bits of `FLAGS`: a reply is in the mail; info columns were written; the reply is an exception."""


class Verb(IntEnum):
    """Kind of a request."""

    STEP = 0
    STEP_ROWS = 1  # step the rows where `row_asked` and `row_done` differ
    STEP_BY_MAIL = 2  # step all rows with actions read from the mail
    RESET = 3
    CALL = 4
    BUILD = 5
    ATTACH = 6
    CLOSE = 7


IS_ORDERED = platform.machine() in ("x86_64", "AMD64")
"""Whether the processor keeps stores in order, and loads, so that only a load after a store needs a fence."""


def make_fence() -> Callable[[], None]:
    """Return a full memory fence for the calling thread.

    Python lacks a fence instruction, but releasing and then acquiring a lock acts as one: memory accesses may move
    into a locked region, never out of it. The reverse order would not be a fence.
    """
    lock = threading.Lock()
    lock.acquire()

    def fence() -> None:
        if lock.locked():  # not if Ctrl-C interrupted an earlier call between the next two lines
            lock.release()
        lock.acquire()

    return fence


def lines_of(memory: Callable[[int], Any], num_workers: int) -> list[Line]:
    """Return the lines of a board: one per worker, then the owner's.

    Args:
        memory: Function that allocates or maps the given number of bytes, in whole pages.
        num_workers: Number of workers.
    """
    size_bytes = -(-8 * WORDS * (1 + num_workers) // mmap.PAGESIZE) * mmap.PAGESIZE
    words = memoryview(memory(size_bytes)).cast("B").cast("q")
    return [words[WORDS * k : WORDS * (k + 1)] for k in range(num_workers + 1)]


def ring_pipe(fd: int) -> None:
    """Wake the process that polls the other end of a pipe."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError):  # already signalled, or the reader has exited
        os.write(fd, b"x")


class Poller:
    """File descriptors to sleep on, with a handler for each."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], bool]] = {}

    def watch(self, fd: int, handler: Callable[[], bool] | None = None) -> None:
        """Add a descriptor.

        Args:
            fd: Descriptor to poll for input.
            handler: Called when `fd` is readable; returns True to end the wait. By default the bytes are read and
                discarded (a wake-up pipe).
        """
        self._poll.register(fd, select.POLLIN)
        self._handlers[fd] = handler or (lambda: os.read(fd, 4096) == b"")

    def forget(self, fd: int) -> None:
        """Remove a descriptor; idempotent."""
        with contextlib.suppress(KeyError, ValueError):  # unknown, or closed
            self._poll.unregister(fd)
        self._handlers.pop(fd, None)

    def sleep(self, timeout_s: float) -> bool:
        """Sleep until a descriptor is readable, run its handler, and return True if a handler asked to end the wait."""
        needs_attention = False
        for fd, _ in self._poll.poll(timeout_s * 1000):
            handler = self._handlers.get(fd)
            if handler is not None:  # else another handler forgot it just now
                needs_attention |= handler()
        return needs_attention


OWNER_SPIN_NS, WORKER_SPIN_NS = 1_000_000, 400_000
"""Maximum spinning time. Workers spin for less, because a spinning worker can take a core from the owner's policy. An
owner whose workers fill all cores never spins: it would take a core from a worker that steps."""


_WINDOW_CYCLES, _TRIAL_CYCLES = 64, 16


class SpinPolicy:
    """Choose by measurement whether the processes of a fleet spin before sleeping.

    Step-to-step times are measured in windows of 64 steps, including the time outside the fleet, so that spinning
    workers that slow down the policy are noticed. Windows are compared by their medians, since means are dominated by
    other programs. The faster setting is kept (sleeping on a tie); the other one is tried for 16 steps at growing
    intervals.

    A fleet starts asleep: on a busy machine a step can take a hundred times as long while spinning, because a yielded
    core comes back late. For the same reason a window of spinning ends as soon as sleeping would have been faster.

    Args:
        owner: Owner's line; the setting is stored in its word `IS_AWAKE`.
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

    def next_step(self, start_ns: int) -> None:
        """Record the step that ended and start timing the next one at `start_ns`."""
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


class Waiter:
    """Wait for a condition on the board: spin if the owner's line says so, then sleep.

    Args:
        line: Line of the waiting process; its word `ASLEEP` is set while it sleeps.
        owner: Owner's line.
        sleep: Function that sleeps for at most the given seconds or until woken; returns True if something other than
            a wake-up needs attention, such as the exit of a process.
        spin_ns: Maximum spinning time in nanoseconds.
        spin_policy: Measurement to inform, in an owner that may spin.

    Attributes:
        spin_policy: Measurement to inform, or `None`.
        waited_ns: Time spent waiting.
        sleep: Function that sleeps.
        fence: Memory fence of the waiting thread.
    """

    SLEEP_S = 1.0  # wake-ups cannot be lost (see `make_fence`); the limit only bounds the detection of other events

    def __init__(
        self,
        line: Line,
        owner: Line,
        sleep: Callable[[float], bool],
        *,
        spin_ns: int = 0,
        spin_policy: SpinPolicy | None = None,
    ) -> None:
        self._line, self._owner, self.sleep, self.fence = line, owner, sleep, make_fence()
        self._spin_ns, self.spin_policy = spin_ns, spin_policy
        self.waited_ns = 0

    def wait(
        self, is_there: Callable[[], bool], start_ns: int, timeout_s: float = math.inf, *, awaited: int = 1
    ) -> bool:
        """Wait until `is_there` returns True.

        Args:
            is_there: Condition; reads words of the board.
            start_ns: `perf_counter_ns` at the time of the request. The timeout counts from here, since the process may
                lose the processor between request and wait.
            timeout_s: Timeout in seconds.
            awaited: Value of `ASKED` that every worker must complete before the waiting process is woken; 1 wakes it at
                any completion.

        Returns:
            True if the condition holds; False after a timeout or if something else needs attention.
        """
        there = is_there()
        if self._owner[IS_AWAKE]:
            now, limit = start_ns, start_ns + self._spin_ns
            while not there and now < limit:
                os.sched_yield()
                there, now = is_there(), time.perf_counter_ns()
        if not there:
            self._line[ASLEEP] = awaited
            # A worker that finishes after the next check sees ASLEEP and wakes this process.
            self.fence()
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
        """Let all processes of the fleet sleep without spinning from now on."""
        self.spin_policy = None
        self._owner[IS_AWAKE] = False
