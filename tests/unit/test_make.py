"""Choice of the backend and the number of workers."""

import functools
import math
import os
import re
import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import envfleet
from envfleet import choice
from envfleet.backends import plan_workers
from envfleet.errors import SubEnvError
from envfleet.options import Options
from envfleet.testing.envs import CountingEnv


@pytest.mark.parametrize(
    ("num_envs", "workers", "envs_per_worker", "sizes"),
    [(8, 3, None, (3, 3, 2)), (8, None, 3, (3, 3, 2)), (6, 2, 3, (3, 3)), (2, 2, None, (1, 1))],
)
def test_sub_environments_are_spread_evenly(num_envs, workers, envs_per_worker, sizes) -> None:
    options = Options(backend="process", workers=workers, envs_per_worker=envs_per_worker)
    assert plan_workers(options, num_envs, reason="").envs_per_worker == sizes


def test_serial_has_one_worker() -> None:
    assert plan_workers(Options(backend="serial"), 5, reason="").envs_per_worker == (5,)


def test_auto_keeps_cheap_environments_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "CHEAP_STEP_S", 0.1)  # on a machine that is busy, too
    with envfleet.make(CountingEnv, num_envs=2, workers=2) as fleet:
        assert fleet.plan.backend == "serial"
        assert "too short for processes to help" in fleet.plan.reason
        assert [name for name, _ in fleet.plan.trials] == ["serial"]
        assert "serial" in repr(fleet)


@pytest.mark.parametrize(
    ("thread_s", "process_s", "chosen"),
    [(0.002, 0.001, "process"), (0.001, 0.002, "thread"), (0.0039, 0.0039, "serial"), (0.001, 0.00099, "thread")],
)
def test_auto_takes_workers_that_are_clearly_faster(
    thread_s: float, process_s: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {"serial": 0.004, "thread": thread_s, "process": process_s}
    monkeypatch.setattr(choice, "_step_s", lambda fleet: seconds[fleet.plan.backend])
    with envfleet.make(CountingEnv, num_envs=2, workers=2) as fleet:
        assert fleet.plan.backend == chosen
        assert "× as fast as serial" in fleet.plan.reason
        names = "serial", "thread, 2 workers × 1", "process, 2 workers × 1"
        assert fleet.plan.trials == tuple(zip(names, (500.0, 2 / thread_s, 2 / process_s), strict=True))


def test_auto_does_not_wait_for_slow_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial of 64 steps of 100 ms in one thread, several times over, would take a minute."""
    monkeypatch.setattr(choice, "SLOW_STEP_S", 0.0)
    monkeypatch.setattr(choice, "FIRST_STEP_S", 0.0)
    monkeypatch.setattr(choice, "_step_s", None)
    with envfleet.make(CountingEnv, num_envs=2, workers=2) as fleet:
        assert fleet.plan.backend == "process"
        assert re.search(r"one step of all takes .* s in one thread, too long to try both", fleet.plan.reason)
        assert [name for name, _ in fleet.plan.trials] == ["serial"]


def test_auto_forgives_a_first_step_that_loads_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_begin", lambda fleet: 2 * choice.SLOW_STEP_S)
    monkeypatch.setattr(choice, "_step_s", lambda fleet: 1e-6)
    with envfleet.make(CountingEnv, num_envs=2, workers=2) as fleet:
        assert fleet.plan.backend == "serial"


class Fussy(CountingEnv):
    """Raises on what random actions do."""

    def step(self, action: Any) -> Any:
        raise ValueError("a draw bridge must be lowered first\nand more")


class MainProcessOnly(CountingEnv):
    """Cannot be built in a worker process."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        if os.getpid() != pid:
            raise RuntimeError("no licence here")


class Holder(CountingEnv):
    """Is given what does not pickle."""

    def __init__(self, lock: Any) -> None:
        super().__init__()
        self.lock = lock


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (Fussy, "ValueError: a draw bridge must be lowered first"),
        (functools.partial(MainProcessOnly, pid=os.getpid()), "RuntimeError: no licence here"),
        (
            functools.partial(Holder, threading.Lock()),
            "cannot be sent to the workers (TypeError: cannot pickle '_thread.lock' object)",
        ),
    ],
)
def test_auto_keeps_environments_that_fail_the_trial_serial(
    env: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "CHEAP_STEP_S", 0.0)
    monkeypatch.setattr(choice, "SLOW_STEP_S", 100.0)
    monkeypatch.setattr(choice, "MARGIN", math.inf)  # threads do not win, on a busy machine either
    with envfleet.make(env, num_envs=2, workers=2) as fleet:
        assert fleet.plan.backend == "serial"
        assert fleet.plan.reason.startswith("auto: the trial with random actions failed: ")
        assert words in fleet.plan.reason
        assert "\n" not in fleet.plan.reason
        fleet.reset(seed=0)


class OnlyOne(CountingEnv):
    """Allows one instance per process, as emulators do."""

    is_there = False

    def __init__(self) -> None:
        if OnlyOne.is_there:
            raise RuntimeError("only one emulator per process")
        super().__init__()
        OnlyOne.is_there = True

    def close(self) -> None:
        OnlyOne.is_there = False


@pytest.mark.parametrize("num_cores", [1, 2])
def test_auto_builds_in_processes_what_cannot_be_built_in_one(monkeypatch: pytest.MonkeyPatch, num_cores: int) -> None:
    monkeypatch.setattr(choice, "whole_cores", lambda: num_cores)
    with envfleet.make(OnlyOne, num_envs=2, envs_per_worker=1) as fleet:
        assert fleet.plan.backend == "process"
        assert "only one emulator per process" in fleet.plan.reason
        fleet.reset(seed=0)
        assert fleet.step([0, 0])[1].tolist() == [1, 1]
    with pytest.raises(SubEnvError, match=r'need backend="process" and envs_per_worker=1'):
        envfleet.make(OnlyOne, num_envs=2, workers=1)
    assert not OnlyOne.is_there


@pytest.mark.parametrize(
    ("num_envs", "workers", "cores", "words"),
    [(1, None, 2, "one sub-environment"), (4, 1, 2, "one worker"), (4, 2, 1, "one usable core")],
)
def test_auto_tries_nothing_where_there_is_no_choice(
    num_envs: int, workers: int | None, cores: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "whole_cores", lambda: cores)
    with envfleet.make(CountingEnv, num_envs, workers=workers) as fleet:
        assert fleet.plan.reason == f"auto: there is {words}"
        assert not fleet.plan.trials


def test_auto_hands_over_a_fleet_that_has_done_nothing() -> None:
    with envfleet.make("CartPole-v1", num_envs=3) as fleet, pytest.raises(envfleet.errors.ResetNeeded):
        fleet.step(np.zeros(3, np.int64))
    with envfleet.make("CartPole-v1", num_envs=3) as fleet:
        assert fleet.stats().steps == 0
        observations, _ = fleet.reset(seed=5)
        assert (fleet.episode_ids == [0, 1, 2]).all()
    reference, _ = gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync").reset(seed=5)
    assert (observations == reference).all()
