"""A failed episode can be run again from its file."""

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.fault.builders import reset_and_step

import envfleet
from envfleet.core.builders import EnvBuilder
from envfleet.core.layout import SpaceLayout
from envfleet.core.origins import ORIGIN_BYTES, ORIGIN_WORDS, Origin, Origins
from envfleet.core.recorder import SentLog
from envfleet.core.replay import MAX_FILES, ReplayRecord, ReplayUnavailable, replay, write_replay
from envfleet.core.trace import MAX_ENTRIES, MIN_ENTRIES, Trace
from envfleet.errors import Failure, SubEnvError
from envfleet.make import Backend
from envfleet.testing import CountingEnv, FaultyEnv


class Walk(gym.Env):
    """A random walk that fails where luck and actions lead it: only the same seed and actions fail the same way."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.age = self.np_random.normal(), 0
        return np.array([self.place]), {}

    def step(self, action):
        self.age += 1
        self.place += action * self.np_random.normal()
        if self.place > 4:
            raise ArithmeticError(f"off the map at {self.place!r}")
        return np.array([self.place]), 0.0, self.age >= 9, False, {}


def failing_run(backend: Backend, folder: Path, monkeypatch: pytest.MonkeyPatch) -> SubEnvError:
    monkeypatch.setenv("ENVFLEET_REPLAY_DIR", str(folder))
    with envfleet.make(Walk, num_envs=4, backend=backend, seed=0) as fleet:
        fleet.reset(seed=11)
        rng = np.random.default_rng(0)
        try:
            for _ in range(1000):
                fleet.step(rng.integers(0, 3, 4))
        except SubEnvError as error:
            return error
    raise AssertionError("no walk left the map")


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_the_file_fails_with_the_same_words(backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = failing_run(backend, tmp_path, monkeypatch)
    assert isinstance(error.__cause__, ArithmeticError)
    assert error.replay_file is not None
    assert error.replay_file in str(error)
    report = replay(error.replay_file)
    assert report.reproduced
    assert error.failures[0].message in report.text


def test_no_file_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "missing"
    error = failing_run("serial", folder, monkeypatch)
    assert error.replay_file is None
    assert f"There is no file to run it again: {folder} takes no file (No such file or directory)" in str(error)
    assert not folder.exists()


def test_old_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVFLEET_REPLAY_DIR", str(tmp_path))
    other = tmp_path / "notes.pkl"
    other.touch()
    for number in range(MAX_FILES + 5):
        failure = Failure(number, 0, "step", "Error", "", "", 1, replay=b"")
        path = write_replay(failure)[1]
        assert path is not None
        assert Path(path).exists()
    assert len(list(tmp_path.iterdir())) == MAX_FILES + 1
    assert other.exists()


@pytest.mark.parametrize("when", ["step", "reset"])
def test_an_exit_is_a_failure_like_others(when: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends neither the fleet's process nor the one that runs it again."""
    monkeypatch.setenv("ENVFLEET_REPLAY_DIR", str(tmp_path))
    fleet = envfleet.make(lambda: FaultyEnv("sys_exit", when, nth=1), 1, backend="serial")
    with fleet, pytest.raises(SubEnvError) as caught:
        reset_and_step(fleet, num_envs=1)
    assert caught.value.replay_file is not None
    assert replay(caught.value.replay_file).reproduced


class Wrong(CountingEnv):
    """Returns something else than an environment does."""

    def __init__(self, result: tuple[Any, ...]) -> None:
        super().__init__()
        self.result = result

    def step(self, action: Any) -> Any:
        return self.result


@pytest.mark.parametrize(
    "result",
    [
        (np.zeros(9), 0.0, False, False, {}),
        (np.zeros(5), "much", False, False, {}),
        (np.zeros(5), 0.0, False, {}),
        (np.zeros(5), 0.0, False, False, ["note"]),
        (np.zeros(5), 0.0, np.zeros(2, bool), False, {}),
    ],
    ids=["observation", "reward", "length", "info", "flag"],
)
def test_what_a_fleet_refuses_is_refused_again(
    result: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVFLEET_REPLAY_DIR", str(tmp_path))
    with envfleet.make(lambda: Wrong(result), 1, backend="serial") as fleet:
        fleet.reset(seed=0)
        with pytest.raises(SubEnvError) as caught:
            fleet.step([0])
    assert caught.value.replay_file is not None
    report = replay(caught.value.replay_file)
    assert report.reproduced, report.text


def test_somebody_elses_alarm_still_comes(tmp_path: Path) -> None:
    """A replay with a deadline takes the one timer of the process, and gives it back."""
    origin = Origin(0, None, None, None, 0)
    data = ReplayRecord(EnvBuilder(CountingEnv), origin, [1], "step", "Error", "", 0, timeout_s=30.0).pack()
    assert isinstance(data, bytes)
    path = tmp_path / "one.pkl"
    path.write_bytes(data)
    before = signal.setitimer(signal.ITIMER_REAL, 500, 7)
    try:
        assert not replay(str(path)).reproduced
        left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, 0)
        assert 0 < left_s <= 500
        assert interval_s == 7
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)


def test_a_system_without_user_numbers_keeps_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.getuid")
    (tmp_path / "envfleet-replay-env9-older.pkl").touch()
    assert failing_run("serial", tmp_path, monkeypatch).replay_file is not None


def test_an_interrupt_while_writing_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(handle: int, mode: str) -> Any:
        os.close(handle)
        raise KeyboardInterrupt

    monkeypatch.setenv("ENVFLEET_REPLAY_DIR", str(tmp_path))
    monkeypatch.setattr(os, "fdopen", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_replay(Failure(0, 0, "step", "Error", "", "", 1, replay=b"half"))
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_none_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "letter.pkl"
    with pytest.raises(ReplayUnavailable, match="cannot read"):
        replay(str(path))
    path.write_bytes(b"dear reader")
    with pytest.raises(ReplayUnavailable, match="cannot unpickle"):
        replay(str(path))
    path.write_bytes(b"\x80\x04N.")
    with pytest.raises(ReplayUnavailable, match="no replay file"):
        replay(str(path))
    assert list(tmp_path.iterdir()) == [path]


def test_a_trace_holds_running_episodes_only() -> None:
    trace, env = Trace(2), CountingEnv()
    for row in (0, 1):
        trace.begin(row, env, row, None)
    trace.add(None, ["a0", "a1"])
    trace.add((1,), ["b1"])
    assert (trace.actions_of(0), trace.actions_of(1)) == (["a0"], ["a1", "b1"])
    trace.begin(1, env, None, None)
    trace.add((1, 0), ["c1", "c0"])
    assert (trace.actions_of(0), trace.actions_of(1)) == (["a0", "c0"], ["c1"])


def test_a_trace_does_not_grow_without_end() -> None:
    trace = Trace(1)
    trace.begin(0, CountingEnv(), 0, None)
    for _ in range(MAX_ENTRIES):
        trace.add(None, [0])
    assert trace.actions_of(0) == [0] * MAX_ENTRIES
    trace.add(None, [0])
    assert trace.actions_of(0) is None


def sent_log(num_envs: int) -> tuple[SentLog, Origins]:
    origins = Origins(np.zeros((num_envs, ORIGIN_WORDS), np.int64), np.zeros((num_envs, ORIGIN_BYTES), np.uint8))
    origins.clear()
    return SentLog([np.zeros(num_envs, np.int64)], SpaceLayout(gym.spaces.Discrete(2)), origins, num_envs), origins


def test_sent_actions_are_dropped_soon_after_it_is_known_that_nobody_needs_them() -> None:
    log, origins = sent_log(2)
    origins.write(0, 0, 0, None)
    start = 5 * MAX_ENTRIES
    for _ in range(start):
        log.note(None)
    for row in (0, 1):
        origins.write(row, start, start, None)
    for _ in range(MAX_ENTRIES * 3 // 4):  # fewer than push out what was there before
        log.note(None)
    assert log.actions_of(0, start - 1, start) is None
    assert log.actions_of(0, start, start + 2) == [0, 0]


def test_actions_of_a_worker_that_tells_no_beginnings_are_not_kept() -> None:
    log, _ = sent_log(2)
    for _ in range(1000):
        log.note(None)
    assert log.actions_of(0, 1000 - 2 * MIN_ENTRIES, 1000) is None


def test_a_crashed_worker_may_leave_any_number() -> None:
    trace = Trace(1)
    for _ in range(MAX_ENTRIES + 5):
        trace.add(None, [0])
    assert trace.find(0, 5, -7) == []
