"""Workers that are threads of their owner's process."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from typing import Any

import envfleet


class Cycle:
    def __init__(self) -> None:
        self.itself: Any = self


def test_threads_end_with_a_fleet_that_nobody_closed() -> None:
    before = set(threading.enumerate())
    fleet = envfleet.make("CartPole-v1", 2, backend="thread", workers=2)
    workers = set(threading.enumerate()) - before
    assert len(workers) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it was not closed, which is so
        del fleet
        gc.collect()
    for worker in workers:
        worker.join(10)
        assert not worker.is_alive()


def test_threads_leave_the_owners_garbage_to_be_collected() -> None:
    """What `gc.freeze` keeps is never freed, such as a fleet in a cycle after an exception."""
    gc.disable()  # so that it is not collected before the fleet is made
    try:
        gone = weakref.ref(Cycle())
        with envfleet.make("CartPole-v1", 2, backend="thread", workers=2) as fleet:
            fleet.reset()
        gc.collect()
    finally:
        gc.enable()
    assert gone() is None
