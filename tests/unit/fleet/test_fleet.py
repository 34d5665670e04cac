"""Seeds, statistics, objects and memory of a fleet, including corner cases."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import envfleet
from envfleet.errors import InvalidArgument
from envfleet.testing import CountingEnv


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


def send_and_recv(fleet: Any) -> None:
    fleet.send([0, 0])
    fleet.recv()


@pytest.mark.parametrize("step", [lambda fleet: fleet.step([0, 0]), send_and_recv])
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
        with pytest.raises(InvalidArgument, match=r"expected numbers from 0 to 3 .*: name"):
            fleet.send([0], [4])
        state = fleet.get_state([0])
        cases: list[tuple[Any, str]] = [
            (None, "states is of type NoneType"),
            (state, "states has 1 entries, expected a list of 4"),
            ([*state, *state, 3, 4], r"states\[2\] is of type int and not a saved state"),
        ]
        for states, words in cases:
            with pytest.raises(InvalidArgument, match=words):
                fleet.set_state(states)
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(InvalidArgument, match="neither copied nor pickled"):
                duplicate(fleet)
