"""Workers that stop between two steps, and replies that are cut in the middle, by that or by the owner's Ctrl-C."""

from __future__ import annotations

import array
import contextlib
import fcntl
import itertools
import os
import pickle
import random
import signal
import termios
import threading
import time
import types
from typing import Any

import numpy as np
import pytest
from tests.unit.transports.first_link import link_of

import envfleet
from envfleet.core import dispatch
from envfleet.core.messages import Reply
from envfleet.errors import ResetNeeded, WorkerDied
from envfleet.testing import CountingEnv
from envfleet.transports import process
from envfleet.transports.link import Link
from envfleet.transports.wire import LENGTH

pytestmark = pytest.mark.timeout(60)

PIPE_BYTES = 65_536


class TalkativeEnv(CountingEnv):
    """Has infos that no pipe holds at once."""

    def __init__(self) -> None:
        super().__init__(100)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"text": f"{self.count}:" + "x" * 4 * PIPE_BYTES}


def make(**options: Any) -> Any:
    fleet = envfleet.make(TalkativeEnv, 1, backend="process", **options)
    fleet.reset(seed=0)
    return fleet


def stop_in_the_middle(fleet: Any) -> None:
    """Have a step's reply written as far as the pipe takes it, and stop the worker then."""
    link = link_of(fleet)
    fleet.send(np.zeros(1, np.int64))
    waiting = array.array("i", [0])
    while waiting[0] < PIPE_BYTES:
        fcntl.ioctl(link.reply_fd, termios.FIONREAD, waiting)
        time.sleep(0.001)
    os.kill(link.handle.pid, signal.SIGSTOP)


def test_a_worker_that_stops_in_the_middle_of_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STALL_S", 0.1)
    with make() as fleet:
        stop_in_the_middle(fleet)
        with pytest.raises(WorkerDied, match="stopped in the middle of a reply"):
            fleet.recv()


def test_a_worker_that_stops_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where there is a deadline: without one, a step may take as long as it likes."""
    monkeypatch.setattr(dispatch, "OUTSIDE_S", 0.3)
    with envfleet.make(CountingEnv, 1, backend="process", step_timeout_s=0.3) as fleet:
        link = link_of(fleet)
        fleet.reset(seed=0)
        os.kill(link.handle.pid, signal.SIGSTOP)
        with pytest.raises(WorkerDied, match=r"in no sub-environment for 0\.3 s"):
            fleet.step(np.zeros(1, np.int64))


def test_one_that_stops_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told why, and waited for no longer than for its start."""
    waits_s: list[float] = []

    def stalled(self: Link, record: tuple[int, ...], stall_s: float) -> None:
        waits_s.append(stall_s)
        raise TimeoutError

    monkeypatch.setattr(Link, "read_reply", stalled)
    with pytest.raises(WorkerDied, match="stopped in the middle of a reply"):
        envfleet.make(CountingEnv, 1, backend="process", start_timeout_s=20)
    assert 0 < waits_s[0] <= 20


def test_one_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STALL_S", 0.1)
    with make(on_failure="restart") as fleet:
        stop_in_the_middle(fleet)
        batch = fleet.recv()
        assert batch.truncated.tolist() == [True]
        assert "stopped in the middle" in batch.infos["env_error"][0]
        fleet.step(np.zeros(1, np.int64))
        assert fleet.step(np.zeros(1, np.int64))[4]["text"][0].startswith("1:")


def test_closing_waits_no_longer_than_it_may() -> None:
    fleet = make()
    stop_in_the_middle(fleet)
    fleet.close(timeout=0.1)


def test_ctrl_c_in_the_middle_of_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of it is not taken for the next one."""
    with make() as fleet:
        link, read, reads = link_of(fleet), os.read, itertools.count()

        def interrupted_read(fd: int, size: int) -> bytes:
            if fd == link.reply_fd and next(reads) == 1:
                raise KeyboardInterrupt
            return read(fd, min(size, 1_000) if fd == link.reply_fd else size)

        fleet.send(np.zeros(1, np.int64))
        with monkeypatch.context() as patch:
            patch.setattr(os, "read", interrupted_read)
            with pytest.raises(KeyboardInterrupt):
                fleet.recv()
        with pytest.raises(ResetNeeded):
            fleet.step(np.zeros(1, np.int64))
        fleet.reset(seed=0)
        for number in (1, 2):
            assert fleet.step(np.zeros(1, np.int64))[4]["text"][0].startswith(f"{number}:")


def test_ctrl_c_when_a_reply_is_read_and_not_yet_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not awaited again."""
    with make() as fleet:
        read_reply = Link.read_reply

        def interrupted(self: Link, record: tuple[int, ...], stall_s: float) -> Reply | None:
            read_reply(self, record, stall_s)
            raise KeyboardInterrupt

        fleet.send(np.zeros(1, np.int64))
        with monkeypatch.context() as patch:
            patch.setattr(Link, "read_reply", interrupted)
            with pytest.raises(KeyboardInterrupt):
                fleet.recv()
        fleet.reset(seed=0)
        for number in (1, 2):
            assert fleet.step(np.zeros(1, np.int64))[4]["text"][0].startswith(f"{number}:")


def test_no_interrupt_loses_what_was_read() -> None:
    """Signals at any moment: every reply comes whole, and once."""
    written: list[int] = []
    gone_read, gone_write = os.pipe()

    def start(fds: list[int], ours: list[int]) -> Any:
        written.append(os.dup(fds[1]))
        return types.SimpleNamespace(sentinel_fd=gone_read, is_alive=lambda: True, close=lambda: None)

    def write() -> None:
        with contextlib.suppress(BrokenPipeError):
            for number in itertools.count():
                body = pickle.dumps(Reply(value=(number, bytes(20 * PIPE_BYTES))))
                rest = memoryview(LENGTH.pack(len(body)) + body)
                while rest:
                    rest = rest[os.write(written[0], rest) :]

    def interrupt(signum: int, frame: Any) -> None:
        if is_armed:
            raise KeyboardInterrupt

    numbers: list[int] = []
    is_armed, num_interrupts, record = False, 0, (0,)
    link, writer = Link(0, [], start), threading.Thread(target=write)
    old = signal.signal(signal.SIGALRM, interrupt)
    writer.start()
    try:
        end_s = time.monotonic() + 0.5
        while time.monotonic() < end_s:
            with contextlib.suppress(KeyboardInterrupt):
                num_interrupts, is_armed = num_interrupts + 1, True
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 4e-3))
                reply = link.read_reply(record, 10.0)
                is_armed = False
                assert reply is not None
                numbers.append(reply.value[0])
                record = (len(numbers),)
    finally:
        is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        link.close()
        writer.join()
        for fd in (written[0], gone_read, gone_write):
            os.close(fd)
    assert num_interrupts > len(numbers)
    assert numbers == list(range(len(numbers)))
