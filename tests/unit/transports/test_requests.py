"""Requests that no pipe holds, to workers that do not read them: nothing waits for ever, and nothing is lost."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.fault.programs import is_running
from tests.unit.transports.first_link import link_of

import envfleet
from envfleet.errors import ResetNeeded, StartTimeout, StepTimeout
from envfleet.testing import CountingEnv
from envfleet.transports import backlog, request_pipe
from envfleet.transports.backlog import Backlog
from envfleet.transports.link import STALL_LOOKS
from envfleet.transports.patience import Patience
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


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while not is_stopped(pid):
        time.sleep(0.001)


def give_up_after(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of requests only: replies of a busy machine have their time."""
    look = Backlog.look
    monkeypatch.setattr(Backlog, "look", lambda self, timeout_s, stall_s: look(self, timeout_s, seconds))


def test_a_worker_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no deadline: only that it is stopped for long, in the middle of what it must read, gives it up."""
    give_up_after(0.1, monkeypatch)
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
    give_up_after(0.01, monkeypatch)
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


class Blocked:
    """A link to a worker that reads nothing of what waits in its pipe."""

    def __init__(self, pipe: RequestPipe) -> None:
        self.handle = types.SimpleNamespace(pid=os.getpid())
        self._pipe = pipe

    def pipe(self) -> RequestPipe:
        return self._pipe


def test_only_looks_in_a_row_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a person with a debugger, who stops a worker now and then while it is busy."""
    now_s = itertools.count(step=10.0)
    monkeypatch.setattr(backlog, "time", types.SimpleNamespace(monotonic=lambda: next(now_s)))
    states = [*[True] * STALL_LOOKS, False, *[True] * STALL_LOOKS]
    stopped = iter([*states, True])
    monkeypatch.setattr(backlog, "is_stopped", lambda pid: next(stopped))
    given_up: list[Any] = []
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    with contextlib.closing(RequestPipe(write_fd)) as pipe:
        pipe.write(LARGE.encode())
        waiting = Backlog(Patience(), lambda link, stall_s: given_up.append(link))
        link: Any = Blocked(pipe)
        waiting.add(link)
        for _ in states:
            waiting.look(None, 30.0)
        assert not given_up
        waiting.look(None, 30.0)
        assert given_up == [link]
    os.close(read_fd)


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
    """Whatever moment Ctrl-C comes at: every message that is taken comes whole, once and in order."""
    for moment in itertools.count(1):
        received, was_interrupted = send_interrupted(moment)
        if not was_interrupted:
            break
        assert received == b"".join(message for message in MESSAGES if message[:1] in received)
    assert received == b"".join(MESSAGES)
    assert moment > 100


MESSAGES = (b"a" * 100, b"b" * SIZE, b"c" * 100)


def send_interrupted(moment: int) -> tuple[bytes, bool]:
    """Send the messages, with Ctrl-C before the so-manieth instruction of the pipe's code, if it comes to that."""
    reader, writer = os.pipe()
    for fd in (reader, writer):
        os.set_blocking(fd, False)
    pipe, received, instructions_left = RequestPipe(writer), bytearray(), moment

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal instructions_left
        if frame.f_code.co_filename != request_pipe.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            instructions_left -= 1
            if instructions_left == 0:
                raise KeyboardInterrupt
        return trace

    messages, tracer = iter(MESSAGES), sys.gettrace()
    while (message := next(messages, None)) or pipe.is_blocked:
        with contextlib.suppress(KeyboardInterrupt):
            sys.settrace(trace)
            pipe.write(message) if message else pipe.push()
        sys.settrace(tracer)
        if message is None:
            with contextlib.suppress(BlockingIOError):  # where nothing was written before Ctrl-C
                received += os.read(reader, SIZE)
    pipe.close()
    with os.fdopen(reader, "rb") as rest:
        received += rest.read()
    return bytes(received), instructions_left <= 0
