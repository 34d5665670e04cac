"""A worker is lost while an episode that has ended awaits its reset: the next one begins, and none ends twice."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from tests.conftest import Backend
from tests.fault.builders import StuckEnv

from envfleet.core import dispatch
from envfleet.testing import CountingEnv, FaultyEnv, once_marker

pytestmark = pytest.mark.timeout(60)

PROCESS = Backend("process", 1)


class StuckResetEnv(StuckEnv):
    """Stays in its second reset until there is a file; one that is built again does not."""

    def __init__(self, release: Path, marker: Path) -> None:
        super().__init__(release, nth=0)
        self.length, self.marker = 2, marker

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.episodes and not self.marker.exists():
            self.marker.touch()
            self._stay()
        return super().reset(seed=seed, options=options)


def check_lost(step: int, result: Any) -> None:
    """Of two, the first of which had ended: it begins, and the second ends after `step` steps."""
    observations, rewards, terminated, truncated, infos = result
    assert observations[:, 0].tolist() == [0, step - 1]
    assert rewards.tolist() == [0, 0]
    assert not terminated.any()
    assert truncated.tolist() == [False, True]
    assert infos["restarted"].tolist() == [True, True]
    assert infos["_episode"].tolist() == [False, True]
    assert infos["episode"]["l"].tolist() == [0, step]


def run(fleet: Any) -> None:
    fleet.reset(seed=0)
    fleet.step(np.zeros(2, int))
    assert fleet.step(np.zeros(2, int))[2].tolist() == [True, False]
    check_lost(3, fleet.step(np.zeros(2, int)))
    assert fleet.episode_ids.tolist() == [2, 1]
    observations, *_, infos = fleet.step(np.zeros(2, int))
    assert observations[:, 0].tolist() == [1, 0]
    assert "restarted" not in infos
    assert fleet.step(np.zeros(2, int))[2].tolist() == [True, False]


def test_a_reset_that_kills_its_process(tmp_path: Path) -> None:
    dies = functools.partial(FaultyEnv, "sigkill", "reset", nth=2, once=once_marker(str(tmp_path)), length=2)
    with PROCESS([dies, functools.partial(CountingEnv, 9)], on_failure="restart") as fleet:
        run(fleet)


def test_a_reset_that_cannot_be_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread, which is left behind."""
    monkeypatch.setattr(dispatch, "INTERRUPT_GRACE_S", 0.01)
    release = tmp_path / "release"
    env_fns = [functools.partial(StuckResetEnv, release, tmp_path / "there"), functools.partial(CountingEnv, 9)]
    with Backend("thread", 1)(env_fns, on_failure="restart", step_timeout_s=0.4) as fleet:
        left_behind = fleet._engine.transport._workers[0].thread
        run(fleet)
        release.touch()
        left_behind.join()


def idle_and_killed(mode: AutoresetMode, **options: Any) -> Any:
    """One of two has ended, and their process is gone."""
    env_fns = [functools.partial(CountingEnv, 2), functools.partial(CountingEnv, 9)]
    fleet = PROCESS(env_fns, on_failure="restart", autoreset_mode=mode, **options)
    fleet.reset(seed=0)
    for _ in range(2):
        fleet.send(np.zeros(2, int))
        for _ in range(2 // fleet.batch_size):
            fleet.recv(timeout_s=30)
    os.kill(fleet.stats().workers[0].pid, signal.SIGKILL)
    return fleet


def test_one_by_one() -> None:
    with idle_and_killed(AutoresetMode.NEXT_STEP, batch_size=1) as fleet:
        fleet.send(np.zeros(2, int))
        lengths: dict[int, Any] = {}
        for _ in range(2):
            batch = fleet.recv(timeout_s=30)
            index = int(batch.env_indices[0])
            assert batch.infos["restarted"].tolist() == [True]
            assert batch.truncated.tolist() == [index == 1]
            lengths[index] = batch.infos["episode"]["l"].tolist() if "episode" in batch.infos else None
        assert lengths == {0: None, 1: [3]}


def test_in_the_same_step() -> None:
    """The next episode had begun: it is lost, as the other is."""
    with idle_and_killed(AutoresetMode.SAME_STEP) as fleet:
        truncated, infos = fleet.step(np.zeros(2, int))[3:]
        assert truncated.tolist() == [True, True]
        assert infos["episode"]["l"].tolist() == [1, 3]


def test_disabled() -> None:
    """Whoever resets it by hand is told nothing of an end."""
    with idle_and_killed(AutoresetMode.DISABLED) as fleet:
        observations, infos = fleet.reset_envs([0])
        assert observations[:, 0].tolist() == [0]
        assert "episode" not in infos
        truncated, infos = fleet.step(np.zeros(2, int))[3:]
        assert truncated.tolist() == [False, True]
        assert infos["episode"]["l"].tolist() == [0, 3]
        assert infos["_episode"].tolist() == [False, True]


def test_gymnasiums_own_statistics_agree() -> None:
    with idle_and_killed(AutoresetMode.NEXT_STEP, record_episodes=False) as fleet:
        statistics = RecordEpisodeStatistics(fleet)
        statistics.prev_dones[:] = [True, False]
        infos = statistics.step(np.zeros(2, int))[4]
        assert infos["_episode"].tolist() == [False, True]
