"""The guard of a fleet's calls leads each call, error and interruption to a known state."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

import envfleet
from envfleet.errors import CallPending, FleetBroken, FleetClosed, InvalidArgument, NothingPending, ResetNeeded
from envfleet.fleet.engine import Call, Reset
from envfleet.fleet.guard import CallGuard
from envfleet.fleet.lifecycle import Lifecycle
from envfleet.testing import CountingEnv


@pytest.fixture
def guard() -> Iterator[CallGuard]:
    """A guard of the engine of three sub-environments, after a reset."""
    with envfleet.make([CountingEnv] * 3, backend="serial") as fleet:
        guard = CallGuard(fleet.engine, "receive them first")
        guard.reset("reset()", Reset(seeds=0))
        yield guard


def state_of(guard: CallGuard) -> Lifecycle:
    return guard.state


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interruption_needs_a_reset_of_all(guard: CallGuard) -> None:
    with pytest.raises(KeyboardInterrupt):
        guard.run(interrupt)
    assert state_of(guard) is Lifecycle.TORN
    with pytest.raises(ResetNeeded, match="interrupted"):
        guard.reset("reset() with a mask", Reset(np.array([1])), Lifecycle.READY)
    guard.reset("reset()", Reset())
    assert state_of(guard) is Lifecycle.READY


def test_invalid_arguments_keep_the_state(guard: CallGuard) -> None:
    with pytest.raises(InvalidArgument):
        guard.send(np.zeros(5, np.int64), None)
    assert state_of(guard) is Lifecycle.READY
    assert not guard.under_way.any()


def test_sent_rows_are_pending_until_received(guard: CallGuard) -> None:
    guard.send(np.zeros(2, np.int64), np.array([2, 0]))
    assert state_of(guard) is Lifecycle.PENDING
    assert guard.under_way.tolist() == [True, False, True]
    with pytest.raises(CallPending, match=r"\[0, 2\] are under way: receive them first"):
        guard.send(np.zeros(1, np.int64), np.array([0]))
    with pytest.raises(InvalidArgument, match=r"of \[1\], which are not under way"):
        guard.receive(3, np.array([0, 1]), None)
    assert guard.receive(3, np.array([0]), None).env_indices.tolist() == [0]
    assert state_of(guard) is Lifecycle.PENDING
    assert guard.receive(3, None, None).env_indices.tolist() == [2]
    assert state_of(guard) is Lifecycle.READY
    with pytest.raises(NothingPending), guard.hold("recv()", Lifecycle.PENDING):
        pass


def test_another_thread_is_refused(guard: CallGuard) -> None:
    errors: list[Exception] = []

    def call() -> None:
        try:
            with guard.hold("step()", Lifecycle.READY):
                pass
        except CallPending as error:
            errors.append(error)

    with guard.hold("call()", Lifecycle.READY):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert "another thread" in str(errors[0])


def test_errors_are_reported_after_the_state_is_set(guard: CallGuard) -> None:
    states: list[Lifecycle] = []
    guard.on_error = lambda _error: states.append(guard.state)
    with pytest.raises(envfleet.errors.SubEnvError):
        guard.request(Call("no_such_method"))
    assert states == [guard.state]


def test_a_closed_fleet_stays_closed(guard: CallGuard) -> None:
    assert guard.close(None, is_forced=False) == []
    assert state_of(guard) is Lifecycle.CLOSED
    with pytest.raises(FleetClosed):
        guard.reset("reset()", Reset())


def test_a_disowned_fleet_is_broken(guard: CallGuard) -> None:
    guard.disown()
    with pytest.raises(FleetBroken, match="is a fork"):
        guard.reset("reset()", Reset())
