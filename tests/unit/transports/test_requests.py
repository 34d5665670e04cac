"""Requests that no pipe holds, to workers that do not read them: nothing waits for ever, and nothing is lost."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.fault.programs import is_running

import envfleet
from envfleet.errors import ResetNeeded, StartTimeout, StepTimeout
from envfleet.testing import CountingEnv
from envfleet.transports import backlog, process
from envfleet.transports.link import STALL_LOOKS, Link
from envfleet.transports.process import ProcessTransport
from envfleet.transports.request_pipe import RequestPipe, is_stopped

pytestmark = pytest.mark.timeout(60)

LARGE = "x" * 1_000_000
SIZE = 100_000


class ReadingEnv(CountingEnv):
    """Takes long texts for actions, and rewards their length; waits for a file if the text is its name."""

    def __init__(self, data: Any = None) -> None:
        super().__init__(100)
        self.action_space = spaces.Text(4_000_000)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        while action.startswith("/") and not Path(action.rstrip()).exists():
            time.sleep(0.001)
        observation, _, terminated, truncated, info = super().step(0)
        return observation, float(len(action)), terminated, truncated, info


def make(num_envs: int = 1, **options: Any) -> Any:
    fleet = envfleet.make(ReadingEnv, num_envs, backend="process", workers=1, **options)
    fleet.reset(seed=0)
    return fleet


def link_of(fleet: Any) -> Link:
    link = fleet._engine.transport._links[0]  # the pipe cannot be reached otherwise
    assert isinstance(link, Link)
    return link


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while not is_stopped(pid):
        time.sleep(0.001)


def test_a_worker_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no deadline: only that it is stopped for long, in the middle of what it must read, gives it up."""
    monkeypatch.setattr(process, "STALL_S", 0.1)
    with make(on_failure="restart") as fleet:
        pid = link_of(fleet).handle.pid
        stop(pid)
        truncated, infos = fleet.step((LARGE,))[3:]
        assert truncated.tolist() == [True]
        expected = rf"worker 0 \(pid {pid}\) was killed, as it is stopped .*`kill -CONT {pid}`"
        assert re.match(expected, infos["env_error"][0])
        fleet.step((LARGE,))
        assert fleet.step((LARGE,))[1].tolist() == [len(LARGE)]  # its successor is sent the whole of it


def test_whoever_waits_may_stop_waiting() -> None:
    fleet = make()
    pid = link_of(fleet).handle.pid
    stop(pid)
    fleet.send((LARGE,))
    with pytest.raises(TimeoutError):
        fleet.recv(timeout_s=0.05)
    os.kill(pid, signal.SIGCONT)
    assert fleet.recv(timeout_s=30).rewards.tolist() == [len(LARGE)]
    stop(pid)
    fleet.send((LARGE,))
    fleet.close(timeout=0.1)
    assert not is_running(pid)


def test_one_that_is_busy_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """However often somebody looks meanwhile."""
    looks: list[bool] = []

    def look(pid: int) -> bool:
        looks.append(is_stopped(pid))
        return looks[-1]

    monkeypatch.setattr(backlog, "is_stopped", look)
    monkeypatch.setattr(process, "STALL_S", 0.01)
    with make(2, batch_size=1) as fleet:
        name = tmp_path / "go"
        fleet.send((str(name).ljust(len(LARGE)),), [0])
        fleet.send((LARGE,), [1])
        while len(looks) < 3 * STALL_LOOKS:
            with pytest.raises(TimeoutError):
                fleet.recv(timeout_s=0.005)
        name.touch()
        assert [fleet.recv(timeout_s=30).rewards.tolist() for _ in range(2)] == [[len(LARGE)]] * 2
    assert not any(looks)


def test_a_deadline_is_kept(tmp_path: Path) -> None:
    """Of what is stepped while another's request waits for room."""
    with make(2, batch_size=1, step_timeout_s=0.1) as fleet:
        fleet.send((str(tmp_path / "never"),), [0])
        fleet.send((LARGE,), [1])
        with pytest.raises(StepTimeout):
            fleet.recv()


def test_one_that_is_stopped_before_it_read_what_to_build(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = ProcessTransport._launch

    def launch_and_stop(self: ProcessTransport, *args: Any) -> Any:
        handle = launch(self, *args)
        stop(handle.pid)
        return handle

    monkeypatch.setattr(ProcessTransport, "_launch", launch_and_stop)
    monkeypatch.setattr(ProcessTransport, "stack", lambda self, worker: "")
    data = np.zeros(1_000_000)
    with pytest.raises(StartTimeout):
        envfleet.make(lambda: ReadingEnv(data), 1, backend="process", start_timeout_s=0.1)


def test_ctrl_c_in_the_middle_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of it is sent before the next one, which would be read as the rest of it otherwise."""
    with make() as fleet:
        link, write, writes = link_of(fleet), os.write, itertools.count()

        def interrupted_write(fd: int, data: Any) -> int:
            if fd == link.request_fd and next(writes) == 1:
                raise KeyboardInterrupt
            return write(fd, data)

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", interrupted_write)
            with pytest.raises(KeyboardInterrupt):
                fleet.step((LARGE,))
        with pytest.raises(ResetNeeded):
            fleet.step(("",))
        fleet.reset(seed=0)
        assert fleet.step(("abc",))[1].tolist() == [3]


def test_no_interrupt_tears_a_request() -> None:
    """Signals at any moment: every message that is taken comes whole, once and in order."""
    reader, writer = os.pipe()
    for fd in (reader, writer):
        os.set_blocking(fd, False)
    pipe, received, is_armed, num_interrupts = RequestPipe(writer), bytearray(), False, 0

    def interrupt(signum: int, frame: Any) -> None:
        if is_armed:
            raise KeyboardInterrupt

    numbers = iter(range(1, 40))
    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        while pipe.is_blocked or (number := next(numbers, 0)):
            with contextlib.suppress(BlockingIOError):
                received += os.read(reader, 30_000)
            try:
                is_armed = True
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 4e-4))
                pipe.push() if pipe.is_blocked else pipe.write(bytes([number]) * SIZE)
                is_armed = False
            except KeyboardInterrupt:
                is_armed, num_interrupts = False, num_interrupts + 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        pipe.close()
    with os.fdopen(reader, "rb") as rest:
        received += rest.read()
    assert num_interrupts
    counts = collections.Counter(received)
    assert len(counts) > 10
    assert set(counts.values()) == {SIZE}
    assert received == bytes(sorted(received))
