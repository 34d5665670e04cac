"""Ctrl-C between any two byte codes of the owner: it raises at once, and a reset makes good for it."""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import SERIAL, Backend
from tests.fault.programs import wait_gone
from tests.unit.workers.far_transport import FarTransport
from tests.waiting import PATIENCE_S, wait_until

import envfleet
from envfleet.errors import EnvfleetError
from envfleet.fleet.lifecycle import Lifecycle
from envfleet.testing import CountingEnv

PACKAGE = re.escape(str(Path(envfleet.__file__).parent))
OURS = re.compile(f"{PACKAGE}/").match
NUM_ENVS = 3
STRIDE = 11  # 1 takes minutes


class Interrupter:
    """Raises KeyboardInterrupt before the n-th byte code of code of ours, or of some of it, that this thread runs."""

    def __init__(self, at: int, is_meant: Callable[[str], Any] = OURS) -> None:
        self.left, self.is_meant = at, is_meant

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        if not self.is_meant(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self

    def run(self, call: Callable[[], Any]) -> bool:
        """Make a call; returns whether it was interrupted."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


def exchange(fleet: Any) -> None:
    fleet.send(np.ones(2, int), [0, 2])
    fleet.recv(env_indices=[2])
    fleet.recv()


CALLS: dict[str, Callable[[Any], Any]] = {
    "step": lambda fleet: fleet.step(np.ones(NUM_ENVS, int)),
    "exchange": exchange,
    "reset": lambda fleet: fleet.reset(seed=3),
    "reset_envs": lambda fleet: fleet.reset_envs([1], [3]),
    "call": lambda fleet: fleet.call("observe"),
    "set_state": lambda fleet: fleet.set_state(fleet.get_state()),
}


def run(fleet: Any) -> list[Any]:
    """Reset and step; return the results of a fleet in order."""
    rows = [fleet.reset(seed=5)[0]]
    for step in range(3):
        observations, rewards, terminated, truncated, infos = fleet.step(np.full(NUM_ENVS, step))
        rows += [np.column_stack([observations, rewards, terminated, truncated]), infos.get("draw", 0)]
    seen = [0, 2, 3]  # but for the number of episodes
    return [row[:, seen] if np.ndim(row) > 1 else row for row in rows]


@pytest.mark.parametrize("call", CALLS)
def test_at_any_moment(backend: Backend, call: str) -> None:
    """The fleet requires a reset, or the call had not begun or was complete; after a reset all is as in a new fleet."""
    env_fns = [functools.partial(CountingEnv, 4, vary=True)] * NUM_ENVS
    with SERIAL(env_fns) as sound:
        expected = run(sound)
    with backend(env_fns) as fleet:
        fleet.reset(seed=0)
        fleet.step(np.zeros(NUM_ENVS, int))
        at = 0
        while Interrupter(at).run(lambda: CALLS[call](fleet)):
            at += STRIDE
            if fleet._calls.state is Lifecycle.PENDING:  # between two calls of ours
                fleet.recv(timeout_s=PATIENCE_S)
            if fleet._calls.state is Lifecycle.PENDING:
                fleet.recv(timeout_s=PATIENCE_S)
            assert fleet._calls.state in (Lifecycle.READY, Lifecycle.TORN)
            for one, other in zip(expected, run(fleet), strict=True):
                np.testing.assert_array_equal(one, other, err_msg=f"after an interrupt at {at}")
        assert at > 100  # how many byte codes a call has depends on the version of Python


def test_at_any_moment_over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.workers.transports.process.ProcessTransport", FarTransport)
    env_fns = [functools.partial(CountingEnv, 4, vary=True)] * NUM_ENVS
    with SERIAL(env_fns) as sound:
        expected = run(sound)
    at, in_far = 0, re.compile(f"{PACKAGE}/workers/transports/far").match
    with Backend("process", 2)(env_fns) as fleet:
        fleet.reset(seed=0)
        while Interrupter(at, in_far).run(lambda: fleet.step(np.zeros(NUM_ENVS, int))):
            at += STRIDE
            for one, other in zip(expected, run(fleet), strict=True):
                np.testing.assert_array_equal(one, other, err_msg=f"after an interrupt at {at}")
    assert at > 100


# Descriptors belong to their objects one byte code after the system has made them: there an interrupt leaves them open.
WITHOUT_DESCRIPTORS = re.compile(
    rf"{PACKAGE}/(fleet/|make|workers/(build|engine|worker_pool|board|serve|partial)\.py)"
).match


def test_while_it_closes() -> None:
    """Everything is given back all the same, as the check for leaks sees."""
    at, was_interrupted = 0, True
    while was_interrupted:
        fleet = Backend("process", 2)([CountingEnv] * 2)
        fleet.reset(seed=0)
        pids = [worker.pid for worker in fleet.stats().workers]
        was_interrupted = Interrupter(at, WITHOUT_DESCRIPTORS).run(fleet.close)
        fleet.close()  # if it was not even begun
        assert not wait_gone(pids), at
        at += 23 + at // 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it was not closed, which is so
def test_while_it_is_made() -> None:
    at = 0
    while Interrupter(at, WITHOUT_DESCRIPTORS).run(lambda: Backend("process", 2)([CountingEnv] * 2).close()):
        at += 97 + at // 3


def test_nothing_but_the_interrupt_is_raised(backend: Backend) -> None:
    """No error of ours hides it, and none comes with it."""
    with backend([CountingEnv] * NUM_ENVS) as fleet:
        fleet.reset(seed=0)
        for at in range(0, 200, 7):
            try:
                fleet.reset(seed=0)
                Interrupter(at).run(lambda: fleet.step(np.zeros(NUM_ENVS, int)))
            except EnvfleetError as error:
                pytest.fail(f"{error!r} at {at}")


def test_wakes_of_threads_leave_no_lock_behind() -> None:
    with envfleet.make(CountingEnv, 2, backend="thread", workers=2) as fleet:
        fleet.reset(seed=0)
        in_threading = re.compile(re.escape(threading.__file__)).match
        for at in range(0, 200, 3):
            was_interrupted = Interrupter(at, in_threading).run(lambda: fleet.step(np.zeros(2, int)))
            assert fleet.reset(seed=0)[0][:, 0].tolist() == [0, 0]
            if not was_interrupted:
                break


class Signalled(CountingEnv):
    """Sends a signal to its process in the second step."""

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if result[0][0] == 2:
            signal.raise_signal(signal.SIGUSR2)
        return result


@pytest.mark.parametrize("error", [SystemExit(3), TimeoutError("too long")], ids=repr)
@pytest.mark.parametrize("on_failure", ["raise", "restart"])
def test_what_a_signal_handler_raises_is_no_failure(on_failure: Any, error: BaseException) -> None:
    def handle(*_: Any) -> None:
        raise error

    before = signal.signal(signal.SIGUSR2, handle)
    try:
        with envfleet.make(Signalled, 2, backend="serial", on_failure=on_failure) as fleet:
            fleet.reset(seed=0)
            fleet.step([0, 0])
            with pytest.raises(type(error)) as caught:
                fleet.step([0, 0])
            assert caught.value is error
            assert fleet.reset(seed=0)[0][:, 0].tolist() == [0, 0]
            fleet.step([0, 0])
            assert fleet.stats().restarts == 0
    finally:
        signal.signal(signal.SIGUSR2, before)


class SignallingOwner(CountingEnv):
    """Sends a signal to the owner of the fleet in a step, and waits until it is handled."""

    def __init__(self, owner: int, handled: Path) -> None:
        super().__init__()
        self.owner, self.handled = owner, handled

    def step(self, action: Any) -> Any:
        if not self.handled.exists():
            os.kill(self.owner, signal.SIGUSR2)
            wait_until(self.handled.exists)
        return super().step(action)


@pytest.mark.parametrize("terminate", [False, True])
def test_signal_handlers_cannot_close_the_fleet(backend: Backend, terminate: bool, tmp_path: Path) -> None:
    handled = tmp_path / "handled"

    def handle(*_: Any) -> None:
        handled.touch()
        fleet.close(terminate=terminate)

    before = signal.signal(signal.SIGUSR2, handle)
    try:
        env_fns = [functools.partial(SignallingOwner, os.getpid(), handled), CountingEnv]
        with backend(env_fns) as fleet:
            fleet.reset(seed=0)
            with pytest.raises(EnvfleetError, match=r"close\(\) in the middle of another call"):
                fleet.step([0, 0])
            assert not fleet.closed
            if not terminate:
                fleet.reset(seed=0)
                fleet.step([0, 0])
        assert fleet.closed
    finally:
        signal.signal(signal.SIGUSR2, before)
