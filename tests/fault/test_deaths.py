"""A worker process ends without being asked to: WorkerDied, nothing hangs, nothing is left."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Backend
from tests.fault.builders import FAULTY, NUM_ENVS, actions, env_fns_with, receive_often, reset_and_step
from tests.fault.programs import is_running, wait_gone
from tests.waiting import PATIENCE_S, wait_until

from envfleet.errors import FleetBroken, WorkerDied
from envfleet.fleet import guard
from envfleet.testing import CountingEnv, FaultyEnv
from envfleet.testing.faults import When

PROCESS = Backend("process", 2)
DEATHS = {
    "os_exit": (3, "exited with code 3"),
    "sigkill": (-signal.SIGKILL, "killed by SIGKILL, often out of memory"),
    "sigsegv": (-signal.SIGSEGV, "killed by SIGSEGV"),
}


@pytest.mark.parametrize("when", ["reset", "step"])
@pytest.mark.parametrize("fault", DEATHS)
def test_worker_ends_itself(fault: str, when: When) -> None:
    exitcode, words = DEATHS[fault]
    fleet = PROCESS(env_fns_with(fault, when))
    try:
        pids = [worker.pid for worker in fleet.stats().workers]
        with pytest.raises(WorkerDied) as caught:
            reset_and_step(fleet)
        error = caught.value
        assert (error.worker, error.env_indices, error.exitcode) == (0, (0, 1), exitcode)
        assert error.env_index == FAULTY
        assert words in str(error)
        assert (
            "0 after 0 steps, last seeded with 0; 1 after 0 steps, last seeded with 1" in str(error) or when == "reset"
        )
        assert 'Pass on_failure="restart"' in str(error)
        with pytest.raises(FleetBroken) as broken:
            fleet.step(actions(1))
        assert broken.value.__cause__ is error
    finally:
        fleet.close()
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.parametrize("fault", DEATHS)
def test_in_the_constructor(fault: str) -> None:
    with pytest.raises(WorkerDied) as caught:
        PROCESS(env_fns_with(fault, "constructor"))
    assert caught.value.exitcode == DEATHS[fault][0]
    assert FAULTY in caught.value.env_indices


@pytest.mark.parametrize("fault", DEATHS)
def test_in_close(fault: str) -> None:
    """All resources are released; the death of a worker that was ending anyway may or may not be reported."""
    fleet = PROCESS(env_fns_with(fault, "close"))
    fleet.reset(seed=0)
    with contextlib.suppress(WorkerDied):
        fleet.close()
    assert fleet.closed


def kill(fleet: Any, worker: int, number: int = signal.SIGKILL) -> None:
    os.kill(fleet.stats().workers[worker].pid, number)


CALLS: dict[str, Callable[[Any], Any]] = {
    "step": lambda fleet: fleet.step(actions(0)),
    "reset": lambda fleet: fleet.reset(),
    "call": lambda fleet: fleet.call("count"),
    "get_state": lambda fleet: fleet.get_state(),
    "send": receive_often,
}


@pytest.mark.parametrize("call", CALLS)
def test_killed_while_idle(call: str) -> None:
    with PROCESS([CountingEnv] * NUM_ENVS) as fleet:
        fleet.reset(seed=0)
        kill(fleet, 1)
        with pytest.raises(WorkerDied) as caught:
            CALLS[call](fleet)
        assert (caught.value.worker, caught.value.env_indices) == (1, (2, 3))


def test_killed_in_the_middle_of_a_step(tmp_path: Path) -> None:
    marker = tmp_path / "there"

    def kill_it() -> None:
        wait_until(marker.exists)
        kill(fleet, 0)

    with PROCESS(env_fns_with("hang", once=str(marker))) as fleet:
        fleet.reset(seed=0)
        killer = threading.Thread(target=kill_it)
        killer.start()
        with pytest.raises(WorkerDied) as caught:
            fleet.step(actions(0))
        killer.join()
        assert caught.value.env_index == FAULTY


def test_all_workers_killed_at_once() -> None:
    with PROCESS([CountingEnv] * NUM_ENVS) as fleet:
        fleet.reset(seed=0)
        for worker in (0, 1):
            kill(fleet, worker)
        with pytest.raises(WorkerDied):
            fleet.step(actions(0))


def test_what_came_before_the_death_is_not_lost() -> None:
    """Rows that a worker completed before it died are received before its death is reported."""
    env_fns = [functools.partial(FaultyEnv, "sigkill" if index == 1 else None) for index in range(2)]
    with Backend("process", 1)(env_fns, batch_size=1) as fleet:
        fleet.reset(seed=0)
        pid = fleet.stats().workers[0].pid
        fleet.send(np.array([3, 3]))
        wait_until(lambda: not is_running(pid))
        assert fleet.recv(timeout_s=PATIENCE_S).env_indices.tolist() == [0]
        with pytest.raises(WorkerDied):
            fleet.recv(timeout_s=PATIENCE_S)


def test_terminated_politely() -> None:
    """SIGTERM to one worker is a death like any other."""
    with PROCESS([CountingEnv] * NUM_ENVS) as fleet:
        fleet.reset(seed=0)
        kill(fleet, 0, signal.SIGTERM)
        with pytest.raises(WorkerDied, match=r"SIGTERM|code 143"):
            fleet.step(actions(0))


def test_stopped_worker_is_a_slow_one() -> None:
    """SIGSTOP and SIGCONT, as a debugger or a container's freezer sends them, do no harm."""
    with PROCESS([CountingEnv] * NUM_ENVS) as fleet:
        fleet.reset(seed=0)
        kill(fleet, 0, signal.SIGSTOP)
        fleet.send(actions(0))
        with pytest.raises(TimeoutError):
            fleet.recv(timeout_s=0.02)
        kill(fleet, 0, signal.SIGCONT)
        assert fleet.recv(timeout_s=PATIENCE_S).observations[:, 0].tolist() == [1] * NUM_ENVS


@pytest.mark.parametrize("options", [{"terminate": True}, {"timeout": 0.05}], ids=str)
def test_close_while_a_step_is_under_way(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """close() does not wait for a hang, and takes what timeout it is given."""
    monkeypatch.setattr(guard, "CLOSE_TIMEOUT_S", 3600.0)
    marker = tmp_path / "there"
    fleet = PROCESS(env_fns_with("hang", once=str(marker)))
    fleet.reset(seed=0)
    fleet.send(actions(0))
    wait_until(marker.exists)
    fleet.close(**options)


def test_close_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sub-environment that does not come back from its close(): waited for as long as was said, and no longer."""
    monkeypatch.setattr(guard, "CLOSE_TIMEOUT_S", 3600.0)
    for backend, env_fn in ((PROCESS, functools.partial(FaultyEnv, "hang", "close")), (Backend("thread", 2), _HeldEnv)):
        fleet = backend([CountingEnv, env_fn])
        fleet.reset(seed=0)
        fleet.close(timeout=0.05)
    _HeldEnv.release.set()


class _HeldEnv(CountingEnv):
    """Does not come back from its close() before it may."""

    release = threading.Event()

    def close(self) -> None:
        self.release.wait()


def test_many_fleets_from_many_threads() -> None:
    """One fleet per thread, made, stepped and closed at the same time as the others."""
    results: list[list[float]] = []

    def work() -> None:
        for _ in range(3):
            with PROCESS([CountingEnv] * 2) as fleet:
                fleet.reset(seed=0)
                fleet.step(actions(0, 2))
                results.append(fleet.step(actions(1, 2))[0][:, 0].tolist())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert results == [[2, 2]] * 12


def test_forgotten_fleet_is_given_back() -> None:
    """Without close(), workers end with the object, with at most a ResourceWarning."""
    import gc
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        fleet = PROCESS([CountingEnv] * 2)
        fleet.reset(seed=0)
        pids = [worker.pid for worker in fleet.stats().workers]
        del fleet
        gc.collect()
    assert not wait_gone(pids)


def test_large_messages_both_ways_at_once() -> None:
    """A worker blocked on a large reply while the owner blocks on a large request: neither may wait forever."""
    with Backend("process", 1)([_LargeEnv] * 2, batch_size=1) as fleet:
        fleet.reset(seed=0)
        large = "x" * 3_000_000
        fleet.send((large,), [0])
        fleet.send((large,), [1])
        for _ in range(2):
            batch = fleet.recv(timeout_s=PATIENCE_S)
            assert batch.rewards.tolist() == [3_000_000.0]
            assert len(batch.infos["echo"][0]) == 3_000_000


def test_large_messages_from_all_at_once() -> None:
    """Megabytes of infos from every worker in one step."""
    with PROCESS([_LargeEnv] * NUM_ENVS) as fleet:
        fleet.reset(seed=0)
        for size in (3_000_000, 10, 1_000_000):
            infos = fleet.step(("x" * size,) * NUM_ENVS)[4]
            assert [len(text) for text in infos["echo"]] == [size] * NUM_ENVS


class _LargeEnv(CountingEnv):
    def __init__(self) -> None:
        super().__init__()
        from gymnasium import spaces

        self.action_space = spaces.Text(4_000_000)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, _ = super().step(0)
        return observation, float(len(action)), terminated, truncated, {"echo": action}
