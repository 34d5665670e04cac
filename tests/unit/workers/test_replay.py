"""A failed episode can be run again from its file."""

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.fault.builders import reset_and_step

import envfleet
from envfleet.errors import Failure, SubEnvError
from envfleet.testing import CountingEnv, FaultyEnv
from envfleet.workers.builders import EnvBuilder
from envfleet.workers.replay import _MAX_FILES, EpisodeLog, ReplayUnavailable, replay, write_replay


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


def failing_run(backend: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> SubEnvError:
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
def test_the_file_fails_with_the_same_words(backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert f"There is no replay file: {folder} is not writable (No such file or directory)" in str(error)
    assert not folder.exists()


def test_old_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVFLEET_REPLAY_DIR", str(tmp_path))
    other = tmp_path / "notes.pkl"
    other.touch()
    for number in range(_MAX_FILES + 5):
        failure = Failure(number, 0, "step", "Error", "", "", 1, replay=b"")
        path = write_replay(failure)[1]
        assert path is not None
        assert Path(path).exists()
    assert len(list(tmp_path.iterdir())) == _MAX_FILES + 1
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


def test_a_system_without_user_numbers_keeps_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.getuid")
    (tmp_path / "envfleet-replay-env9-older.pkl").touch()
    assert failing_run("serial", tmp_path, monkeypatch).replay_file is not None


def test_an_interrupt_while_writing_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(handle: int, mode: str) -> Any:
        os.close(handle)
        assert not list(tmp_path.glob("*.pkl"))  # as it would stay if the process were killed now
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
    with pytest.raises(ReplayUnavailable, match="is not a replay file"):
        replay(str(path))
    assert list(tmp_path.iterdir()) == [path]


def log_of(num_envs: int) -> EpisodeLog:
    log = EpisodeLog(num_envs)
    for row in range(num_envs):
        log.begin(row, CountingEnv(), row, None)
    return log


def note(log: EpisodeLog, rows: list[int] | None, actions: list[Any]) -> None:
    """Note a step as the group does, which holds the log by its attributes."""
    log.steps.append(actions if rows is None else dict(zip(rows, actions, strict=True)))
    log.count += 1


def test_a_log_holds_running_episodes_only() -> None:
    log = log_of(2)
    note(log, None, ["a0", "a1"])
    note(log, [1], ["b1"])
    assert (log.actions_of(0), log.actions_of(1)) == (["a0"], ["a1", "b1"])
    log.begin(1, CountingEnv(), None, None)
    note(log, [1, 0], ["c1", "c0"])
    assert (log.actions_of(0), log.actions_of(1)) == (["a0", "c0"], ["c1"])


def test_a_log_does_not_grow_without_end() -> None:
    log, builder = log_of(1), EnvBuilder(CountingEnv)
    log.limit(step_bytes=1 << 22)
    for _ in range(8):
        note(log, None, [0])
    assert log.actions_of(0) == [0] * 8
    note(log, None, [0])
    assert log.actions_of(0) is None
    assert "longer than the recorded actions" in str(log.record(0, builder, "step", ValueError(), 0))
