"""A sub-environment that overruns step_timeout_s is reported with its stack; its worker is replaced on request."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.conftest import SERIAL, Backend
from tests.fault.builders import (
    FAULTY,
    NUM_ENVS,
    StuckEnv,
    ThirdTimeLuckyEnv,
    actions,
    assert_rows_equal,
    env_fns_with,
    receive_often,
    reset_and_step,
    run,
)
from tests.waiting import PATIENCE_S, wait_until

from envfleet.errors import FleetBroken, InvalidArgument, StartTimeout, StepTimeout
from envfleet.testing import CountingEnv, FaultyEnv, once_marker
from envfleet.testing.faults import When
from envfleet.workers import worker_pool

PROCESS = Backend("process", 2)
TIMEOUT_S = 2.0  # sound steps stay below it on a busy machine, too
WHERE = {"hang": "_fail", "spin": "_spin", "native_loop": "_native_loop", "native_sleep": "_native_sleep"}


@pytest.mark.parametrize("name", ["serial", "thread"])
def test_needs_workers_that_can_be_ended(name: str) -> None:
    with pytest.raises(
        InvalidArgument, match=f"step_timeout_s=1 means .*'{name}', .*: pass backend='process' or 'ray'"
    ):
        Backend(name)([CountingEnv], step_timeout_s=1)


@pytest.mark.parametrize(("fault", "when"), [*((fault, "step") for fault in WHERE), ("hang", "reset")])
def test_tells_who_and_where(fault: str, when: When) -> None:
    """Whatever it does: in Python, in C that holds the interpreter's lock, in C that a signal would cut short."""
    with PROCESS(env_fns_with(fault, when), step_timeout_s=TIMEOUT_S) as fleet:
        with pytest.raises(StepTimeout) as caught:
            reset_and_step(fleet)
        error = caught.value
        assert (error.worker, error.env_index, error.timeout_s) == (0, FAULTY, TIMEOUT_S)
        assert WHERE[fault] in error.stack
        for clue in (error.stack, f"sub-environment {FAULTY} ran longer", 'on_failure="restart"', "last seeded with 1"):
            assert clue in str(error) or (when == "reset" and "seeded" in clue)
        with pytest.raises(FleetBroken) as broken:
            fleet.step(actions(1))
        assert broken.value.__cause__ is error


def test_a_call_may_not_hang_either() -> None:
    env_fns = [functools.partial(FaultyEnv, "hang" if index else None, "render") for index in range(2)]
    with PROCESS(env_fns, step_timeout_s=TIMEOUT_S) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(StepTimeout, match="sub-environment 1"):
            fleet.call("render")


def test_a_deadline_is_each_sub_environments_own() -> None:
    """Four slow ones after one another overrun together what none overruns alone."""
    env_fns = [functools.partial(FaultyEnv, "slow", nth=0, duration_s=1.5)] * NUM_ENVS
    with Backend("process", 1)(env_fns, step_timeout_s=5.5) as fleet:
        reset_and_step(fleet, 1)


def test_no_deadline_while_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late it becomes between two calls."""
    late_s = 0.0
    clock = {"monotonic": lambda: time.monotonic() + late_s, "perf_counter_ns": time.perf_counter_ns}
    monkeypatch.setattr(worker_pool, "time", types.SimpleNamespace(**clock))
    with PROCESS([CountingEnv] * NUM_ENVS, step_timeout_s=60) as fleet:
        fleet.reset(seed=0)
        late_s += 100
        fleet.engine._pool.attend()
        fleet.step(actions(0))
        fleet.send(actions(1))
        fleet.recv()
        late_s += 100
        fleet.engine._pool.attend()
        fleet.step(actions(2))


def test_a_short_deadline_is_not_mistaken() -> None:
    """Thousands of quick steps under a deadline: none is taken for a slow one."""
    with PROCESS([functools.partial(CountingEnv, 50)] * NUM_ENVS, step_timeout_s=TIMEOUT_S) as fleet:
        reset_and_step(fleet, 1000)


# ------------------------------------------------------------------------------------------------ with restart


MODES = [("hang", mode) for mode in AutoresetMode] + [(fault, AutoresetMode.NEXT_STEP) for fault in [*WHERE][1:]]


@pytest.mark.parametrize(("fault", "autoreset_mode"), MODES)
def test_restart(fault: str, autoreset_mode: AutoresetMode, tmp_path: Path) -> None:
    """All rows of its worker are truncated together and rebuilt; the others are those of a run without it."""
    env_fns = env_fns_with(fault, nth=3, once=once_marker(str(tmp_path)))
    options: dict[str, Any] = {"step_timeout_s": TIMEOUT_S, "on_failure": "restart", "max_restarts": 1}
    rows, all_infos = run(PROCESS, env_fns, 12, autoreset_mode, **options)
    expected, _ = run(SERIAL, env_fns_with("raise", faulty=()), 12, autoreset_mode)
    (hit,) = [step for step, infos in enumerate(all_infos) if "restarted" in infos]
    infos = all_infos[hit]
    assert infos["_restarted"].tolist() == [True, True, False, False]
    for index in (0, 1):
        assert WHERE[fault] in infos["env_error"][index]
        assert "on_failure" not in infos["env_error"][index]
        assert rows[index][hit][1:] == (0.0, False, True)  # never a good step
    for index in (2, 3):
        assert_rows_equal(expected[index], rows[index], f"sub-environment {index}")


def test_send_and_recv() -> None:
    with PROCESS(env_fns_with("hang"), step_timeout_s=TIMEOUT_S, batch_size=1) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(StepTimeout) as caught:
            receive_often(fleet)
        assert caught.value.env_index == FAULTY


@pytest.mark.parametrize("on_failure", ["raise", "restart"])
def test_others_that_keep_coming_hide_no_overrun(on_failure: str) -> None:
    """With a batch smaller than the fleet something always comes; time is kept all the same."""
    env_fns = env_fns_with("hang", num_envs=3, nth=1, ends="terminated", vary=False, length=10**6)
    options: dict[str, Any] = {"step_timeout_s": TIMEOUT_S, "batch_size": 1, "on_failure": on_failure}
    with Backend("process", 3)(env_fns, **options) as fleet:
        fleet.reset(seed=0)
        fleet.send(actions(0, 3))
        try:
            batch = _receive_until(fleet, FAULTY)
        except StepTimeout:
            assert on_failure == "raise"
        else:
            assert batch.truncated.tolist() == [True]


def test_others_that_keep_coming_hide_no_death() -> None:
    env_fns = [functools.partial(StuckEnv, "never" if index == FAULTY else "", 1) for index in range(3)]
    with Backend("process", 3)(env_fns, batch_size=1, on_failure="restart") as fleet:
        fleet.reset(seed=0)
        fleet.send(actions(0, 3))
        _receive_until(fleet, 0)
        os.kill(fleet.stats().workers[FAULTY].pid, signal.SIGKILL)
        assert "SIGKILL" in _receive_until(fleet, FAULTY).infos["env_error"][0]


def _receive_until(fleet: Any, index: int) -> Any:
    while True:
        batch = fleet.recv(timeout_s=PATIENCE_S)
        if batch.env_indices[0] == index:
            return batch
        fleet.send(actions(0, 1), batch.env_indices)


# ------------------------------------------------------------------------------------------------ building, stacks


def test_constructor_that_hangs() -> None:
    """Gymnasium waits forever without a message."""
    with pytest.raises(StartTimeout, match=r"workers \[1\] did not finish .*start_timeout_s=20(.|\n)*_fail"):
        PROCESS([CountingEnv, functools.partial(FaultyEnv, "hang", "constructor")], start_timeout_s=20.0)


@pytest.mark.parametrize("is_worker_lost", [False, True])
def test_constructor_that_hangs_when_it_is_rebuilt(is_worker_lost: bool, tmp_path: Path) -> None:
    """It has the time of a start, not that of a step; and then it is replaced again."""
    env_fns = [CountingEnv, functools.partial(ThirdTimeLuckyEnv, tmp_path, is_worker_lost)]
    options: dict[str, Any] = {"on_failure": "restart", "start_timeout_s": 20.0, "step_timeout_s": TIMEOUT_S}
    with PROCESS(env_fns, **options) as fleet:
        fleet.reset(seed=0)
        infos = fleet.step(actions(0, 2))[4]
        assert ("SIGKILL" if is_worker_lost else "start_timeout_s=20") in infos["env_error"][1]
        assert [fleet.step(actions(step, 2))[1][1] > 0 for step in (1, 2)] == [False, True]
        assert fleet.stats().restarts == 2 - (not is_worker_lost)
        assert len(list(tmp_path.iterdir())) == 3


def test_stacks_at_any_time(backend: Backend, tmp_path: Path) -> None:
    """From another thread, of a worker that is in the middle of a step."""
    release = tmp_path / "release"
    env_fns = [functools.partial(StuckEnv, release, nth=1), CountingEnv]
    with backend(env_fns) as fleet:
        fleet.reset(seed=0)
        assert set(fleet.stacks()) == set(range(fleet.plan.num_workers))
        thread = threading.Thread(target=fleet.step, args=(np.zeros(2, int),))
        thread.start()
        wait_until(lambda: "_stay" in fleet.stacks()[0])
        if fleet.plan.num_workers > 1:
            assert "_stay" not in fleet.stacks()[1]
        release.touch()
        thread.join()
