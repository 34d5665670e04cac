"""An interrupt of a thread hits the sub-environment it is meant for, or nothing."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import envfleet
from envfleet.core.arrays import PROGRESS_WORDS, PlaceWord
from envfleet.testing import CountingEnv
from envfleet.transports import thread

pytestmark = pytest.mark.timeout(60)

NUM_STEPS = 200


class Yielding(CountingEnv):
    """Others get to run in the middle of its steps."""

    def step(self, action: Any) -> Any:
        time.sleep(0)
        result = super().step(action)
        time.sleep(0)
        return result


@pytest.fixture
def fleet() -> Iterator[Any]:
    options: dict[str, Any] = {"on_failure": "restart", "max_restarts": 1_000_000, "step_timeout_s": 30}
    with envfleet.make(lambda: Yielding(10**6), 3, backend="thread", workers=1, **options) as fleet:
        fleet.reset(seed=0)
        yield fleet


def test_one_that_comes_too_late_is_nobodys(fleet: Any) -> None:
    """The step was over when the fleet decided: neither the thread nor the next step may pay for it."""
    engine = fleet._engine
    for step in range(1, 20):
        fleet.step(np.zeros(3, int))
        line = engine.arrays.progress[0]
        line[PlaceWord.INTERRUPT] = (int(line[PlaceWord.TURN]) << 32) + 1
        engine.transport.interrupt(0)
        time.sleep(0.001)
        fleet.send(np.zeros(3, int))
        assert not fleet.recv(timeout_s=20).truncated.any()
        assert fleet.get_attr("count") == (2 * step,) * 3


def test_one_at_any_moment_hits_no_other(fleet: Any) -> None:
    """Only the first of three is meant, at whatever instruction it may be: the others count every step.

    It is struck in one place per step; the reset that follows would be another, and a failure that ends the fleet.
    """
    engine, stop = fleet._engine, threading.Event()
    struck = [0]

    def interrupt() -> None:
        line = engine.arrays.progress[0]
        while not stop.is_set():
            place = PlaceWord.place(line)
            if place and place & 0xFFFF_FFFF == 1 and struck[0] in (0, place):
                struck[0] = place
                line[PlaceWord.INTERRUPT] = place
                engine.transport.interrupt(0)

    hammer = threading.Thread(target=interrupt)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    hammer.start()
    hits = 0
    try:
        for step in range(1, NUM_STEPS):
            struck[0] = 0
            fleet.send(np.zeros(3, int))
            batch = fleet.recv(timeout_s=20)
            hits += int(batch.truncated[0])
            assert batch.observations[1:, 0].tolist() == [step, step]
            assert not batch.truncated[1:].any()
    finally:
        sys.setswitchinterval(interval_s)
        stop.set()
        hammer.join()
    assert hits


def test_ctrl_c_while_the_fleet_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that waits for the exception does not wait for ever."""

    def ctrl_c(*_: Any) -> None:
        raise KeyboardInterrupt

    line = thread._GuardedLine(np.zeros(PROGRESS_WORDS, np.int64))
    line[PlaceWord.ROW] = 1
    with monkeypatch.context() as patch:
        patch.setattr(PlaceWord, "place", ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            line.interrupt(threading.get_ident())
    line[PlaceWord.ROW] = 0


def test_one_that_is_abandoned_waits_for_no_exception() -> None:
    line = thread._GuardedLine(np.zeros(PROGRESS_WORDS, np.int64))
    line[PlaceWord.ROW] = 1
    line._tokens.pop()
    leaving = threading.Thread(target=line.__setitem__, args=(PlaceWord.ROW, 0))
    leaving.start()
    line.is_abandoned = True
    leaving.join()
