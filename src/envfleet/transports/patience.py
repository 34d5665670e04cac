"""Wait for descriptors: a few microseconds awake, then asleep."""

from __future__ import annotations

import os
import select
import time

AWAKE_NS = 50_000
"""How long to stay awake. Waking a core that went to sleep takes tens of microseconds, most of all on virtual ones."""

CONTENDED_NS = 150_000
"""A yield that takes longer than this let somebody else run: then staying awake costs more than it gains."""

CONTENDED_REST = 1_000
MAX_REST = 1_023


class Patience:
    """Polls descriptors, staying awake for a moment first wherever that pays.

    While awake it offers its core to whoever is ready to run between any two looks. It stops that for a thousand waits
    when a yield shows that the core is wanted, and for ever more waits (up to a thousand) when the moment was too short
    time after time: so waits that are long, or on a machine that is busy, are spent asleep.
    """

    def __init__(self) -> None:
        self._poller = select.poll()
        self._rest = 0
        self._misses = 0

    def register(self, fd: int, events: int = select.POLLIN) -> None:
        """Watch a descriptor for something to read, or for other `events` of `select.poll`, or its end."""
        self._poller.register(fd, events)

    def unregister(self, fd: int) -> None:
        """Watch it no more."""
        self._poller.unregister(fd)

    def wait(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """Descriptors that are ready, as `select.poll` gives them; none if `timeout_s` passes first."""
        if (timeout_s is None or timeout_s > 0) and (events := self.linger()):
            return events
        return self._poller.poll(None if timeout_s is None else max(timeout_s, 0) * 1000)

    def linger(self) -> list[tuple[int, int]]:
        """Stay awake for a moment, if that pays; descriptors that became ready, for whoever would sleep without."""
        if self._rest > 0:
            self._rest -= 1
            return []
        poll, now = self._poller.poll, time.perf_counter_ns()
        end = now + AWAKE_NS
        while now < end:
            events = poll(0)
            if events:
                self._misses = 0
                return events
            os.sched_yield()
            before, now = now, time.perf_counter_ns()
            if now - before > CONTENDED_NS:
                self._rest = CONTENDED_REST
                return []
        self._misses += 1
        self._rest = min(2**self._misses - 1, MAX_REST)
        return []
