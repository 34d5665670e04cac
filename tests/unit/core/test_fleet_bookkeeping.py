"""What a fleet says of seeds, statistics, objects and memory is so, in the corners too."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import envfleet
from envfleet.adapters import fleet_internals
from envfleet.core import recycling
from envfleet.errors import FleetClosed, InvalidArgument
from envfleet.testing import CountingEnv, FaultyEnv

NO_PID = 2**22 + 1


class Named(gym.Env[str, int]):
    """Observes the process it lives in, as text, which travels as an object."""

    observation_space = gym.spaces.Text(20, charset="0123456789")
    action_space: Any = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return str(os.getpid()), {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return str(os.getpid()), 1.0, True, False, {}


def test_objects_come_from_the_worker_that_took_anothers_place() -> None:
    options: dict[str, Any] = {"recycle_episodes": 1, "autoreset_mode": "SAME_STEP"}
    with envfleet.make(Named, 1, backend="process", workers=1, **options) as fleet:
        before = fleet.reset(seed=0)[0]
        after = fleet.step([0])[0]
        assert after == (str(fleet.stats().workers[0].pid),)
        assert after != before


def test_a_process_that_has_just_ended_holds_nothing() -> None:
    assert recycling.resident_bytes(os.getpid()) > 1_000_000
    assert recycling.resident_bytes(NO_PID) == 0


def test_recycling_by_memory_needs_what_tells_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: not str(path).startswith("/proc") and exists(path))
    with pytest.raises(InvalidArgument, match="recycle_episodes"):
        envfleet.make(CountingEnv, 1, backend="process", recycle_bytes=1 << 30)


@pytest.mark.parametrize("seeds", [[1], [1, -1], "12", 7, [1, "x"], np.array([0.5, 1.5])])
def test_seeds_of_a_partial_reset_are_checked(seeds: Any) -> None:
    with envfleet.make(CountingEnv, 2, backend="serial") as fleet:
        fleet.reset(seed=0)
        with pytest.raises(InvalidArgument, match="seeds"):
            fleet.reset_envs([0, 1], seeds)
        fleet.step([0, 0])


def test_seeds_of_a_partial_reset_may_be_an_array() -> None:
    with envfleet.make(CountingEnv, 3, backend="serial") as fleet:
        first = fleet.reset(seed=[5, 6, 7])[0]
        again = fleet.reset_envs([2, 0], np.array([7, 5]))[0]
        np.testing.assert_array_equal(again[:, 2], first[[2, 0], 2])


def test_a_part_counts_its_own_time_and_restarts() -> None:
    env_fns = [lambda index=index: FaultyEnv("raise" if index == 3 else None, nth=2, length=9) for index in range(4)]
    with envfleet.make(env_fns, backend="thread", workers=2, on_failure="restart") as fleet:
        first, second = fleet.split(2)
        second.reset(seed=0)
        for _ in range(3):
            second.step([0, 0])
        first.reset(seed=0)
        stats, other = first.stats(), second.stats()
        assert (stats.steps, stats.restarts) == (0, 0)
        assert (other.steps, other.restarts) == (6, 1)
        first.step([0, 0])
        assert first.stats().wait_s > stats.wait_s
        assert second.stats() == other


def test_parts_of_a_serial_fleet_share_its_time_by_their_steps() -> None:
    with envfleet.make(CountingEnv, 4, backend="serial") as fleet:
        first, second = fleet.split(2)
        first.reset(seed=0)
        second.reset(seed=0)
        for _ in range(3):
            first.step([0, 0])
        second.step([0, 0])
        stats = first.stats()
        assert stats.step_s == pytest.approx(stats.busy_s * 0.75)


def step_in_halves(fleet: Any) -> None:
    fleet_internals.start_step(fleet, [0, 0])(None)


def send_and_recv(fleet: Any) -> None:
    fleet.send([0, 0])
    fleet.recv()


@pytest.mark.parametrize("step", [lambda fleet: fleet.step([0, 0]), send_and_recv, step_in_halves])
def test_time_counts_however_a_fleet_is_stepped(step: Any) -> None:
    with envfleet.make(CountingEnv, 2, backend="serial") as fleet:
        fleet.reset(seed=0)
        step(fleet)
        stats = fleet.stats()
        assert stats.steps == 2
        assert stats.copy_s > 0.0


def test_what_is_wrong_with_a_call_is_said_with_what_to_pass() -> None:
    with envfleet.make(CountingEnv, 4, backend="serial") as fleet:
        fleet.reset(seed=0)
        with pytest.raises(InvalidArgument, match=r"Got `3` values for 4 environments\. Pass one"):
            fleet.set_attr("length", [1, 2, 3])
        with pytest.raises(InvalidArgument, match=r"expected numbers from 0 to 3 .*: pass"):
            fleet.send([0], [4])
        state = fleet.get_state([0])
        cases: list[tuple[Any, str]] = [
            (None, "states is of type NoneType"),
            (state, "states has 1 entries, expected a list of 4"),
            ([*state, *state, 3, 4], r"states\[2\] is of type int and no saved state"),
        ]
        for states, words in cases:
            with pytest.raises(InvalidArgument, match=words):
                fleet.set_state(states)
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(InvalidArgument, match="neither copied nor pickled"):
                duplicate(fleet)
        for parts in (0, 5, 1.5):
            with pytest.raises(InvalidArgument, match=r"num_parts=.*: pass a whole number from 1 to num_envs=4"):
                fleet.split(parts)  # type: ignore[arg-type]  # one of them is wrong
        fleet.split(2)
        with pytest.raises(FleetClosed, match=r"get_attr\(\) on a fleet that was split"):
            fleet.get_attr("length")
        with pytest.raises(FleetClosed, match="use its parts"):
            fleet.step([0] * 4)
