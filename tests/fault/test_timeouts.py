"""A sub-environment that overruns step_timeout_s: told with its stack, replaced on request, never mixed up."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.conftest import Backend
from tests.fault.builders import (
    FAULTY,
    NUM_ENVS,
    StuckEnv,
    actions,
    assert_rows_equal,
    env_fns_with,
    receive_often,
    reset_and_step,
    run,
)
from tests.fault.programs import wait_until

from envfleet.core import dispatch
from envfleet.errors import FleetBroken, StartTimeout, StepTimeout
from envfleet.testing import CountingEnv, FaultyEnv, once_marker
from envfleet.testing.faults import When
from envfleet.transports.process import ProcessTransport
from envfleet.transports.thread import ThreadTransport

pytestmark = pytest.mark.timeout(60)

PROCESS = Backend("process", 2)
TIMEOUT_S = 0.3
SOFT = ("hang", "spin")  # Python can interrupt these
HARD = ("stubborn", "native_loop")  # only the end of the process ends these


def hanging(fault: str, backend: Backend, when: When = "step", **options: Any) -> list[Any]:
    # A thread cannot be ended, so there a hang is bounded; one that shuts out interrupts must outlast the grace.
    is_short = fault in SOFT and when != "constructor"
    duration_s = 60.0 if backend.name != "thread" else 0.9 if is_short else 1.7
    return env_fns_with(fault, when, duration_s=duration_s, **options)


@pytest.mark.parametrize("when", ["step", "reset"])
@pytest.mark.parametrize("fault", SOFT)
def test_tells_who_and_where(backend: Backend, fault: str, when: When) -> None:
    fleet = backend(hanging(fault, backend, when), step_timeout_s=TIMEOUT_S)
    try:
        start = time.monotonic()
        with pytest.raises(StepTimeout) as caught:
            reset_and_step(fleet)
        assert time.monotonic() - start >= TIMEOUT_S
        error = caught.value
        assert (error.env_index, error.timeout_s) == (FAULTY, TIMEOUT_S)
        assert "_act_up" in error.stack
        assert "_act_up" in str(error)
        assert "on_failure" in str(error)
        with pytest.raises(FleetBroken):
            fleet.step(actions(1))
    finally:
        fleet.close()


@pytest.mark.parametrize("fault", HARD)
def test_stuck_beyond_interrupts(fault: str) -> None:
    """One that swallows every exception, and one that loops in C with the interpreter lock held."""
    fleet = PROCESS(hanging(fault, PROCESS), step_timeout_s=TIMEOUT_S)
    try:
        fleet.reset(seed=0)
        with pytest.raises(StepTimeout) as caught:
            fleet.step(actions(0))
        assert caught.value.env_index == FAULTY
        assert fault in caught.value.stack  # by faulthandler, which needs no interpreter lock
    finally:
        fleet.close()


def test_a_deadline_is_each_sub_environments_own(backend: Backend) -> None:
    """Four slow ones after one another overrun together what none overruns alone."""
    env_fns = [functools.partial(FaultyEnv, "slow", nth=0, duration_s=0.15)] * NUM_ENVS
    with backend(env_fns, step_timeout_s=0.4) as fleet:
        fleet.reset(seed=0)
        for step in range(2):
            fleet.step(actions(step))


@pytest.mark.parametrize("backend", [Backend("thread", 2), PROCESS], ids=str)
def test_no_deadline_while_nothing_runs(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """However late it becomes between two calls."""
    late_s = 0.0
    monkeypatch.setattr(dispatch, "time", types.SimpleNamespace(monotonic=lambda: time.monotonic() + late_s))
    with backend([CountingEnv] * NUM_ENVS, step_timeout_s=60) as fleet:
        fleet.reset(seed=0)
        late_s += 100
        fleet.step(actions(0))
        fleet.send(actions(1))
        fleet.recv()
        late_s += 100
        fleet.step(actions(2))


def test_a_short_deadline_is_not_mistaken(backend: Backend) -> None:
    """Thousands of quick steps under a deadline: none is taken for a slow one."""
    with backend([functools.partial(CountingEnv, 50)] * NUM_ENVS, step_timeout_s=0.5) as fleet:
        fleet.reset(seed=0)
        for step in range(1000):
            fleet.step(actions(step % 5))


def test_a_timer_of_the_callers_survives(backend: Backend) -> None:
    """A script's own alarm still comes while and after a fleet watches over its deadline."""
    with _alarm_in(0.05) as rung, backend([CountingEnv] * 2, step_timeout_s=5) as fleet:
        fleet.reset(seed=0)
        end = time.monotonic() + 30.0
        while not rung and time.monotonic() < end:
            fleet.step(np.zeros(2, int))
        assert rung


@contextlib.contextmanager
def _alarm_in(delay_s: float) -> Iterator[list[int]]:
    """Set an alarm; gives back pytest-timeout's own afterwards."""
    rung: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, delay_s)
    try:
        yield rung
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, left_s)


# ------------------------------------------------------------------------------------------------ with restart


@pytest.mark.parametrize("fault", ["spin", "hang", "stubborn", "native_loop"])
def test_restart(
    backend: Backend, fault: str, autoreset_mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The stuck one ends truncated and is rebuilt; the neighbours' rows are those of a run without it."""
    if backend.name != "process" and (fault == "native_loop" or (backend.name == "serial" and fault == "stubborn")):
        pytest.skip("nothing can end it but itself")
    if fault in HARD and autoreset_mode != AutoresetMode.NEXT_STEP:
        pytest.skip("the end of a worker is the same in every mode")
    is_interrupted = fault == "spin" or (fault == "hang" and backend.name != "thread")  # which hears none while asleep
    if is_interrupted:  # however long a busy machine takes to let it hear
        monkeypatch.setattr(dispatch, "INTERRUPT_GRACE_S", 30.0)
    env_fns = hanging(fault, backend, nth=3, once=once_marker(str(tmp_path)))
    rows, all_infos = run(
        backend, env_fns, 12, autoreset_mode, step_timeout_s=TIMEOUT_S, on_failure="restart", max_restarts=3
    )
    expected, _ = run(Backend("serial"), env_fns_with("raise", faulty=()), 12, autoreset_mode)
    hit = [infos for infos in all_infos if "restarted" in infos]
    assert len(hit) == 1
    lost = set(np.flatnonzero(hit[0]["_restarted"]).tolist())
    assert FAULTY in lost
    if is_interrupted:
        assert lost == {FAULTY}
    assert lost <= {0, 1}  # a worker that must be given up takes its own group along, and no other
    for index in set(range(NUM_ENVS)) - lost:
        assert_rows_equal(expected[index], rows[index], f"sub-environment {index}")


def test_late_replies_are_dropped_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply of the abandoned step must not be taken for a later step's."""
    monkeypatch.setattr(dispatch, "INTERRUPT_GRACE_S", 0.05)
    release = tmp_path / "release"
    env_fns = [functools.partial(StuckEnv, release, nth=1), CountingEnv]
    with Backend("thread", 2)(env_fns, step_timeout_s=0.1, on_failure="restart") as fleet:
        fleet.reset(seed=0)
        left_behind = fleet._engine.transport._workers[0].thread
        truncated = fleet.step(np.zeros(2, int))[3]
        assert truncated[0]
        fleet._engine.dispatcher._step_timeout_s = 60.0  # on a busy machine, others may be late, too
        release.touch()
        left_behind.join()
        for count in range(4):
            observations, rewards, *_ = fleet.step(np.zeros(2, int))
            assert observations[0, 0] == rewards[0] == count


def test_send_and_recv(backend: Backend) -> None:
    with backend(hanging("hang", backend), step_timeout_s=TIMEOUT_S, batch_size=1) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(StepTimeout) as caught:
            receive_often(fleet)
        assert caught.value.env_index == FAULTY


def test_others_that_keep_coming_hide_no_overrun() -> None:
    """With a batch smaller than the fleet something always comes; time is kept all the same."""
    env_fns = env_fns_with("hang", num_envs=3, duration_s=8.0)
    with Backend("process", 3)(env_fns, step_timeout_s=0.2, batch_size=1) as fleet:
        fleet.reset(seed=0)
        fleet.send(actions(0, 3))
        with pytest.raises(StepTimeout):
            _step_until_it_arrives(fleet)


def _step_until_it_arrives(fleet: Any) -> None:
    index = None
    while index != FAULTY:
        index = int(fleet.recv(timeout_s=20).env_indices[0])
        fleet.send(actions(0, 1), [index])


@pytest.mark.parametrize("transport", [ThreadTransport, ProcessTransport], ids=lambda transport: transport.name)
def test_constructor_that_hangs(transport: type, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Gymnasium waits for ever, and says nothing."""
    marker, await_built = tmp_path / "there", transport._await_built  # type: ignore[attr-defined]  # of both

    def await_built_once_it_hangs(*args: Any) -> Any:
        wait_until(marker.exists)
        return await_built(*args)

    monkeypatch.setattr(transport, "_await_built", await_built_once_it_hangs)
    if transport is ProcessTransport:
        hangs: Any = functools.partial(FaultyEnv, "hang", "constructor", once=str(marker))
    else:  # a thread cannot be ended
        hangs = functools.partial(_HeldEnv, marker)
    with pytest.raises(StartTimeout, match=r"_act_up|_hold"):
        Backend(transport.name, 2)([hangs] * 2, start_timeout_s=0.01)  # type: ignore[attr-defined]  # of both
    _HeldEnv.release.set()


class _HeldEnv(CountingEnv):
    """Is not built before it may be."""

    release = threading.Event()

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self._hold(marker)

    def _hold(self, marker: Path) -> None:
        marker.touch()
        self.release.wait()


def test_stacks_at_any_time(tmp_path: Path) -> None:
    for backend in (Backend("thread", 2), PROCESS):
        release = tmp_path / backend.name
        env_fns = [functools.partial(StuckEnv, release, nth=1), CountingEnv]
        with backend(env_fns) as fleet:
            fleet.reset(seed=0)
            assert set(fleet.stacks()) == {0, 1}
            fleet.send(actions(0, 2))
            wait_until(functools.partial(_is_stuck, fleet))
            assert "_stay" not in fleet.stacks()[1]
            release.touch()
            fleet.recv(timeout_s=30)


def _is_stuck(fleet: Any) -> bool:
    return "_stay" in fleet.stacks()[0]
