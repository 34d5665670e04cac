"""Borrow the process's one interval timer, and give it back as it would be had nobody borrowed it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def borrowed_alarm(handler: Callable[[int, Any], None]) -> Iterator[Callable[[float, float], None]]:
    """Have `handler` called on SIGALRM, in the main thread.

    Gives a function that sets the timer: to go off after so many seconds, and every so many from then on. The caller's
    own alarm waits until the end; it is due then as before, or at once if it is overdue.
    """

    def set_timer(first_s: float, every_s: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, first_s, every_s)

    start_s = time.monotonic()
    left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, 0)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield set_timer
    finally:
        set_timer(0, 0)
        signal.signal(signal.SIGALRM, before)
        if left_s:
            set_timer(max(left_s - (time.monotonic() - start_s), 1e-6), interval_s)
