"""A worker that is killed or stuck cannot tell; the error still says which episode, step and action it was at."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from tests.conftest import Backend
from tests.fault.builders import FAULTY, env_fns_with, reset_and_step

from envfleet.core.replay import load_replay, replay
from envfleet.errors import StepTimeout, WorkerDied
from envfleet.testing import CountingEnv, FaultyEnv

pytestmark = pytest.mark.timeout(120)

PROCESS = Backend("process", 2)
SEED = 10  # with it, `DoomedEnv` does not die in its first episode


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENVFLEET_REPLAY_DIR", str(tmp_path))


class DoomedEnv(CountingEnv):
    """Kills its process at an unlucky draw, some episodes in; in the process that made it, it raises instead.

    Before it dies it leaves its last words in a file, which only the same state and the same actions lead to.
    """

    def __init__(self, index: int, words: Path, owner: int, limit: float = 0.9) -> None:
        super().__init__(4)
        self.index, self.words, self.owner, self.limit = index, words, owner, limit
        self.taken: list[int] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.taken = []
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        self.taken.append(int(action))
        if self.index == FAULTY and self.draw > self.limit:
            words = f"{self.draw!r} after {self.taken}"
            if os.getpid() == self.owner:
                raise ArithmeticError(words)
            self.words.write_text(words)
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def doomed(tmp_path: Path, limit: float = 0.9) -> list[Any]:
    return [functools.partial(DoomedEnv, index, tmp_path / "words", os.getpid(), limit) for index in range(4)]


def step_until_death(fleet: Any, rng: np.random.Generator) -> None:
    for _ in range(200):
        if fleet.terminated_indices and fleet.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
            fleet.reset_envs(fleet.terminated_indices)
        fleet.step(rng.integers(0, 4, 4))


def receive_until_death(fleet: Any, rng: np.random.Generator) -> None:
    fleet.send(rng.integers(0, 4, 4))
    for _ in range(400):
        ready = fleet.recv(timeout_s=20).env_indices
        ended = [index for index in fleet.terminated_indices if index in ready]
        if ended and fleet.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
            fleet.reset_envs(ended)
        fleet.send(rng.integers(0, 4, len(ready)), ready)


WAYS = {
    "step": (step_until_death, {}),
    "send": (receive_until_death, {"batch_size": 2}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_later_episode(way: str, mode: AutoresetMode, tmp_path: Path) -> None:
    """However the fleet is stepped, the file leads to the very draw that killed the worker."""
    run, options = WAYS[way]
    with PROCESS(doomed(tmp_path), autoreset_mode=mode, **options) as fleet:
        fleet.reset(seed=SEED)
        with pytest.raises(WorkerDied) as caught:
            run(fleet, np.random.default_rng(0))
    error = caught.value
    words = (tmp_path / "words").read_text()
    taken = [int(digit) for digit in words.partition(" after ")[2].strip("[]").split(", ")]
    (failure,) = error.failures
    assert (error.env_index, failure.env_index, failure.worker, failure.verb) == (FAULTY, FAULTY, 0, "step")
    assert (failure.step, failure.seed) == (len(taken) - 1, SEED + FAULTY)
    assert (
        f"step {len(taken) - 1} of its episode, last seeded with {SEED + FAULTY}, last action {failure.action}"
        in str(error)
    )
    assert str(taken[-1]) in str(failure.action)
    assert error.replay_file is not None
    assert f"envfleet replay {error.replay_file}" in str(error)
    record = load_replay(error.replay_file)
    assert record.origin.rng_state is not None, "it is meant to die in a later episode, which nobody seeded"
    assert [int(action) for action in record.actions] == taken
    report = replay(error.replay_file)
    assert f"ArithmeticError: {words}" in report.text


def test_after_a_restart(tmp_path: Path) -> None:
    """The next worker's record begins anew; with restarts the text and the file come with the infos."""
    with PROCESS(doomed(tmp_path), on_failure="restart", step_timeout_s=60) as fleet:
        fleet.reset(seed=SEED)
        rng, deaths = np.random.default_rng(0), 0
        for _ in range(400):
            infos = fleet.step(rng.integers(0, 4, 4))[4]
            if "env_error" not in infos:
                continue
            deaths += 1
            text, words = infos["env_error"][FAULTY], (tmp_path / "words").read_text()
            assert "killed by SIGKILL" in text
            path = text.partition("envfleet replay ")[2].strip()
            assert f"ArithmeticError: {words}" in replay(path).text
            if deaths == 3:
                return
    pytest.fail("it died too seldom")


def test_in_reset() -> None:
    env_fns = env_fns_with("sigsegv", "reset", nth=2, length=3, vary=False)
    with PROCESS(env_fns) as fleet, pytest.raises(WorkerDied) as caught:
        reset_and_step(fleet, 10, seed=6)
    (failure,) = caught.value.failures
    assert (failure.verb, failure.step, failure.seed) == ("reset", None, 6 + FAULTY)
    assert caught.value.replay_file is not None
    assert load_replay(caught.value.replay_file).actions == []


def test_large_options() -> None:
    """The beginning of such an episode is not kept where it outlives the worker, and the error says so."""
    with PROCESS(env_fns_with("sigkill", nth=2, length=9, vary=False)) as fleet:
        fleet.reset(seed=0, options={"map": "x" * 2000})
        fleet.step(np.zeros(4, np.int64))
        with pytest.raises(WorkerDied) as caught:
            fleet.step(np.zeros(4, np.int64))
    assert caught.value.replay_file is None
    assert "reset with options that are large" in str(caught.value)
    assert caught.value.failures[0].step == 1


def test_in_a_call() -> None:
    """No step was asked for: there is nothing to run again, and none is made up."""
    with PROCESS([FaultyEnv] * 2 + [functools.partial(FaultyEnv, "sigkill", "render")] * 2) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(WorkerDied) as caught:
            fleet.call("render")
    (failure,) = caught.value.failures
    assert (failure.env_index, failure.verb, failure.step) == (2, "call", None)
    assert caught.value.replay_file is None
    assert "replay" not in str(caught.value)


def test_killed_while_idle() -> None:
    with PROCESS([CountingEnv] * 2) as fleet:
        fleet.reset(seed=0)
        os.kill(fleet.stats().workers[1].pid, signal.SIGKILL)
        with pytest.raises(WorkerDied) as caught:
            fleet.call("count")
    assert (caught.value.failures, caught.value.env_index, caught.value.replay_file) == ((), None, None)


@pytest.mark.parametrize("backend", [Backend("serial", None), Backend("thread", 2), PROCESS], ids=str)
def test_a_hang(backend: Backend) -> None:
    """A step that overran its deadline is told and recorded alike; run again, it is interrupted as long after."""
    duration_s = 60.0 if backend.name == "process" else 0.9
    env_fns = env_fns_with("hang", nth=3, length=50, vary=False, duration_s=duration_s)
    with backend(env_fns, step_timeout_s=0.3) as fleet, pytest.raises(StepTimeout) as caught:
        reset_and_step(fleet, 3, seed=5)
    error = caught.value
    (failure,) = error.failures
    assert (failure.env_index, failure.step, failure.seed, failure.is_timeout) == (FAULTY, 2, 6, True)
    assert "step 2 of its episode, last seeded with 6" in str(error)
    assert error.replay_file is not None
    report = replay(error.replay_file)
    assert report.reproduced, report.text
    assert "_act_up" in report.text


def test_from_the_command_line() -> None:
    """The process that runs it again ends the same way, having said what to expect."""
    with PROCESS(env_fns_with("sigsegv", nth=2, length=9, vary=False)) as fleet, pytest.raises(WorkerDied) as caught:
        reset_and_step(fleet, 2, seed=1)
    command = [sys.executable, "-m", "envfleet.cli", "replay", str(caught.value.replay_file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == -signal.SIGSEGV, result.stderr
    assert "WorkerDied in step after 1 steps: killed by SIGSEGV" in result.stdout


class TextEnv(CountingEnv):
    """Takes text and a number: actions that do not lie in arrays."""

    def __init__(self) -> None:
        super().__init__(9)
        self.action_space = spaces.Dict({"say": spaces.Text(20), "move": spaces.Box(-1, 1, (2,), np.float32)})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action["say"] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(len(action["say"]))


def test_actions_of_other_kinds() -> None:
    words, moves = ["a", "bc", "die"], np.array([[0, 0], [0.1, 0.1], [0.2, 0.2]], np.float32)
    with Backend("process", 1)([TextEnv] * 2) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(WorkerDied) as caught:
            _step_all(
                fleet, [{"say": ("x", word), "move": [move, move]} for word, move in zip(words, moves, strict=True)]
            )
    record = load_replay(str(caught.value.replay_file))
    assert [action["say"] for action in record.actions] == words
    np.testing.assert_array_equal([action["move"] for action in record.actions], moves)
    assert caught.value.failures[0].env_index == 1


def _step_all(fleet: Any, actions: Iterable[Any]) -> None:
    for action in actions:
        fleet.step(action)


def test_more_than_is_kept() -> None:
    """An episode that is longer than the record has no file, and the error says why."""
    with Backend("process", 1)([LargeActionEnv] * 2) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(WorkerDied) as caught:
            _step_all(fleet, [np.zeros((2, 200_000), np.float32)] * 80)
    (failure,) = caught.value.failures
    assert (failure.env_index, failure.step, failure.seed) == (0, 59, 0)
    assert caught.value.replay_file is None
    assert "There is no file to run it again: its episode is longer than" in str(caught.value)


class LargeActionEnv(CountingEnv):
    """Takes actions of 800 kB, and dies in its 60th step."""

    def __init__(self) -> None:
        super().__init__(100)
        self.action_space = spaces.Box(0, 100, (200_000,), np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.count == 59:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action[0])
