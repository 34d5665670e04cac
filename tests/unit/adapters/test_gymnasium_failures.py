"""Where `AsyncFleet` and `SyncFleet` fail better than Gymnasium's classes: late results, errors, dead workers."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import (
    AlreadyPendingCallError,
)
from gymnasium.vector.async_vector_env import AsyncState
from tests.unit.adapters.peers import (
    BOTH,
    ZEROS,
    faulty,
)

from envfleet.adapters.gymnasium import AsyncFleet, SyncFleet
from envfleet.core.replay import replay
from envfleet.errors import FleetBroken, SubEnvError, WorkerDied
from envfleet.testing import CountingEnv, FaultyEnv
from envfleet.testing.faults import BadReprError, PlainError, TwoArgumentsError, UnpicklableError

# ------------------------------------------------------------------------------------------------ waiting


@pytest.mark.parametrize("verb", ["reset", "step", "call"])
def test_a_wait_that_timed_out_can_be_repeated(verb: str) -> None:
    """Gymnasium forgets the call, takes its late result for that of the next one, and is off by one ever after."""
    slow_in = {"reset": "reset", "step": "step", "call": "render"}[verb]
    nth = 3 if verb == "reset" else 2
    envs = AsyncFleet(faulty("slow", slow_in, nth=nth, duration_s=1.0), workers=2)
    envs.reset(seed=0)
    envs.reset(seed=0)
    envs.step(ZEROS)
    envs.render()
    arguments: dict[str, tuple[Any, ...]] = {"step": (ZEROS,), "call": ("render",)}
    getattr(envs, f"{verb}_async")(*arguments.get(verb, ()))
    with pytest.raises(multiprocessing.TimeoutError):
        getattr(envs, f"{verb}_wait")(timeout=0.05)
    assert envs._state.value == verb
    with pytest.raises(AlreadyPendingCallError):
        envs.step_async(ZEROS)
    result = getattr(envs, f"{verb}_wait")(timeout=30)
    count = {"reset": 0, "step": 2, "call": 1}[verb]
    if verb == "call":
        assert result == (None, None)
    else:
        assert result[0][:, 0].tolist() == [count, count]
    for _ in range(3):
        count += 1
        observations, rewards, *_ = envs.step(ZEROS)
        assert observations[:, 0].tolist() == rewards.tolist() == [count, count]
    envs.close()


def test_wait_with_a_timeout_of_0_asks_whether_it_is_there() -> None:
    envs = AsyncFleet([CountingEnv] * 2)
    envs.reset(seed=0)
    envs.step_async(ZEROS)
    for _ in range(1000):
        try:
            result = envs.step_wait(timeout=0)
        except multiprocessing.TimeoutError:
            time.sleep(0.01)
        else:
            break
    assert result[1].tolist() == [1, 1]
    envs.close()


def test_ctrl_c_while_waiting() -> None:
    """What was under way is given up, and the next reset begins anew."""
    envs = AsyncFleet(faulty("slow", nth=1, duration_s=1.0), workers=2)
    envs.reset(seed=0)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        envs.step(ZEROS)
    timer.join()
    assert envs._state is AsyncState.DEFAULT
    assert envs.reset(seed=0)[0][:, 0].tolist() == [0, 0]
    assert envs.step(ZEROS)[1].tolist() == [1, 1]
    envs.close()


def test_close_after_a_timeout_does_not_warn() -> None:
    """Whoever waited knows."""
    envs = AsyncFleet(faulty("hang"), workers=2)
    envs.reset(seed=0)
    envs.step_async(ZEROS)
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0.05)
    start_s = time.perf_counter()
    envs.close(timeout=0.1)
    assert time.perf_counter() - start_s < 5
    assert [process.is_alive() for process in envs.processes] == [False, False]


def test_close_releases_everything_when_its_warning_is_an_error() -> None:
    envs = AsyncFleet([CountingEnv] * 2)
    envs.reset(seed=0)
    envs.step_async(ZEROS)
    with pytest.raises(UserWarning, match="pending call"):
        envs.close()
    assert envs.closed
    assert not any(process.is_alive() for process in envs.processes)


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize("kind", BOTH)
def test_errors_tell_where_they_come_from(kind: Any) -> None:
    envs = kind(faulty("raise", nth=2))
    envs.reset(seed=5)
    envs.step(ZEROS)
    with pytest.raises(PlainError, match="broken on purpose") as caught:
        envs.step(ZEROS)
    cause = caught.value.__cause__
    assert isinstance(cause, SubEnvError)
    assert (cause.env_index, cause.verb, cause.failures[0].seed) == (1, "step", 6)
    assert "broken on purpose" in str(cause)
    assert cause.__cause__ is None  # or the two would go round in circles
    envs.close()


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("fault", ["raise_two_arguments", "raise_unpicklable", "raise_bad_repr"])
def test_errors_of_any_type(kind: Any, fault: str) -> None:
    """Gymnasium calls `type(error)(error)`, which is a TypeError where the constructor takes something else."""
    envs = kind(faulty(fault))
    envs.reset(seed=0)
    with pytest.raises((SubEnvError, TwoArgumentsError, UnpicklableError, BadReprError)) as caught:
        envs.step(ZEROS)
    error = caught.value if isinstance(caught.value, SubEnvError) else caught.value.__cause__
    assert isinstance(error, SubEnvError)
    assert error.env_index == 1
    envs.close()


@pytest.mark.parametrize("fault", ["sys_exit", "keyboard_interrupt"])
def test_what_would_end_the_caller_does_not(fault: str) -> None:
    """`sys.exit` in a sub-environment is its failure, not the end of the program."""
    envs = AsyncFleet(faulty(fault))
    envs.reset(seed=0)
    with pytest.raises(SubEnvError):
        envs.step(ZEROS)
    envs.close()


def test_constructor_that_fails_in_a_worker_only() -> None:
    """Gymnasium: BrokenPipeError or ConnectionResetError, for it builds only the first in the caller's process."""
    with pytest.raises(PlainError):
        AsyncFleet(faulty("raise", "constructor"))


def test_constructor_that_fails_closes_those_built_before(tmp_path: Path) -> None:
    marker = tmp_path / "closed"
    with pytest.raises(PlainError):
        SyncFleet([functools.partial(_MarkingEnv, str(marker)), functools.partial(FaultyEnv, "raise", "constructor")])
    assert marker.exists()


class _MarkingEnv(CountingEnv):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = Path(path)

    def close(self) -> None:
        self.path.touch()


def test_worker_that_dies() -> None:
    """Gymnasium: EOFError, then AlreadyPendingCallError, and close() never returns."""
    envs = AsyncFleet(faulty("os_exit"), workers=2)
    envs.reset(seed=0)
    with pytest.raises(WorkerDied, match="exited with code 3"):
        envs.step(ZEROS)
    with pytest.raises(FleetBroken):
        envs.reset()
    assert [process.is_alive() for process in envs.processes] == [True, False]
    assert envs.processes[1].exitcode == 3
    envs.close()
    assert not envs.processes[0].is_alive()


def test_sync_fleet_needs_a_reset_after_an_error() -> None:
    envs = SyncFleet(faulty("raise", nth=1))
    envs.reset(seed=0)
    with pytest.raises(PlainError):
        envs.step(ZEROS)
    with pytest.raises(FleetBroken):
        envs.step(ZEROS)
    with pytest.raises(FleetBroken):
        envs.reset(options={"reset_mask": np.array([False, True])})
    envs.reset(seed=0)
    assert envs.step(ZEROS)[1].tolist() == [1, 1]
    envs.close()


@pytest.mark.parametrize("kind", BOTH)
def test_errors_of_close_arrive_after_everything_is_released(kind: Any) -> None:
    envs = kind(faulty("raise", "close"))
    envs.reset(seed=0)
    with pytest.raises(PlainError):
        envs.close()
    assert envs.closed
    envs.close()


def test_errors_of_a_pending_call_arrive_when_closing() -> None:
    envs = AsyncFleet(faulty("raise"))
    envs.reset(seed=0)
    envs.step_async(ZEROS)
    with pytest.warns(UserWarning, match="pending call"), pytest.raises(PlainError):
        envs.close()
    assert not any(process.is_alive() for process in envs.processes)


def test_replay_of_a_sync_fleet_builds_a_fresh_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`SyncFleet` builds its sub-environments itself; a replay file must not hold them as they were at the end."""
    monkeypatch.setenv("ENVFLEET_REPLAY_DIR", str(tmp_path))
    envs = SyncFleet(faulty("raise", nth=3))
    envs.reset(seed=0)
    envs.step(ZEROS)
    envs.step(ZEROS)
    with pytest.raises(PlainError) as caught:
        envs.step(ZEROS)
    envs.close()
    cause = caught.value.__cause__
    assert isinstance(cause, SubEnvError)
    assert cause.replay_file is not None
    report = replay(cause.replay_file)
    assert report.reproduced, report.text
