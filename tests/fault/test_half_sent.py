"""What cannot be sent to one worker, when others were sent theirs; and a thread that goes on after it was left."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.conftest import Backend
from tests.fault.builders import StuckEnv

from envfleet.core import dispatch
from envfleet.errors import InvalidArgument, ResetNeeded
from envfleet.testing import CountingEnv

pytestmark = pytest.mark.timeout(60)


class ObjectEnv(CountingEnv):
    """Takes any object for an action, and a reset's options as they are."""

    def __init__(self) -> None:
        super().__init__(50)
        self.action_space = gym.spaces.Text(5)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return super().step(0)


def counts(observations: Any) -> list[float]:
    found: list[float] = observations[:, 0].tolist()
    return found


def test_first_of_a_step() -> None:
    """Nothing was sent: the fleet goes on as if nothing had been asked."""
    with Backend("process", 2)([ObjectEnv] * 2) as fleet:
        fleet.reset(seed=0)
        fleet.step(("a", "b"))
        with pytest.raises(InvalidArgument, match="cannot be pickled"):
            fleet.step((threading.Lock(), "b"))
        observations, _ = fleet.reset_envs([1])
        assert counts(observations) == [0]
        assert counts(fleet.step(("a", "b"))[0]) == [2, 1]


def test_second_of_a_step() -> None:
    """The first worker has stepped and the second has not: only a reset makes them one fleet again."""
    with Backend("process", 2)([ObjectEnv] * 2) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(InvalidArgument, match="cannot be pickled"):
            fleet.step(("a", threading.Lock()))
        with pytest.raises(ResetNeeded):
            fleet.step(("a", "b"))
        fleet.reset(seed=0)
        assert counts(fleet.step(("a", "b"))[0]) == [1, 1]


def test_options_of_a_reset() -> None:
    with Backend("process", 2)([ObjectEnv] * 2) as fleet:
        fleet.reset(seed=0)
        fleet.step(("a", "b"))
        with pytest.raises(InvalidArgument, match="cannot be pickled"):
            fleet.reset(options={"lock": threading.Lock()})
        observations, _ = fleet.reset(options={"reset_mask": np.array([False, True])})
        assert counts(observations) == [1, 0]


def test_second_of_a_send() -> None:
    """Who was sent an action is under way and can be received; who was not is not."""
    with Backend("process", 2)([ObjectEnv] * 2, batch_size=1) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(InvalidArgument, match="cannot be pickled"):
            fleet.send(("a", threading.Lock()))
        assert fleet.recv(timeout_s=10).env_indices.tolist() == [0]
        fleet.send(("a", "b"))
        received = [fleet.recv(timeout_s=10) for _ in range(2)]
        assert sorted((int(batch.env_indices[0]), *counts(batch.observations)) for batch in received) == [
            (0, 2),
            (1, 1),
        ]


def test_a_thread_left_behind_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes back from its step after another has taken its place: its results are nobody's."""
    monkeypatch.setattr(dispatch, "INTERRUPT_GRACE_S", 0.05)
    release = tmp_path / "release"
    options: dict[str, Any] = {"on_failure": "restart", "step_timeout_s": 0.4, "copy": False}
    with Backend("thread", 2)([CountingEnv, functools.partial(StuckEnv, release, nth=2)], **options) as fleet:
        fleet.reset(seed=0)
        fleet.step(np.array([3, 3]))
        left_behind = fleet._engine.transport._workers[1].thread
        observations, rewards, _, truncated, _ = fleet.step(np.array([2, 2]))
        assert truncated.tolist() == [False, True]
        before = observations.copy(), rewards.copy()
        release.touch()
        left_behind.join()
        np.testing.assert_array_equal(observations, before[0])
        np.testing.assert_array_equal(rewards, before[1])
