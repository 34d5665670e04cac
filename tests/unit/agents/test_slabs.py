"""Slabs count what belongs to them."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from envfleet.agents.slabs import SlabWriter
from envfleet.agents.transitions import Transitions


def test_episodes_that_nobody_finishes_leave_nothing_to_the_next() -> None:
    """Cut right after a slab was taken: what they had so far is not the next episodes'."""
    writer = SlabWriter(2, 1, spaces.Box(0, 1, (1,)), spaces.Discrete(2))

    def add(ends: bool) -> None:
        flag, nothing = np.array([ends]), np.array([False])
        observation, action, reward = np.zeros((1, 1)), np.zeros(1, np.int64), np.ones(1)
        writer.add(Transitions(observation, action, reward, flag, nothing, observation, np.array([0])))

    add(ends=False)
    add(ends=False)
    writer.take()
    writer.cut(np.array([0]))
    add(ends=False)
    add(ends=True)
    slab = writer.take()
    assert (slab.ended_steps.tolist(), slab.truncated.tolist()) == ([1], [[False], [False]])


def test_a_failed_step_is_left_out_and_ends_its_episode() -> None:
    writer = SlabWriter(3, 2, spaces.Box(0, 9, (1,)), spaces.Discrete(2))

    def add(*rows: int) -> None:
        flags, index = np.zeros((2, len(rows)), np.bool_), np.array(rows)
        value = np.full((len(rows), 1), float(len(writer)))
        actions, rewards = np.zeros(len(rows), np.int64), np.ones(len(rows))
        writer.add(Transitions(value, actions, rewards, flags[0], flags[1], value + 1, index))

    add(0, 1)
    writer.cut(np.array([1]))
    add(0)
    add(0, 1)
    slab = writer.take()
    assert slab.is_reset.tolist() == [[False, False], [False, True], [False, False]]
    assert slab.truncated.tolist() == [[False, True], [False, False], [False, False]]
    assert (slab.ended_steps.tolist(), slab.ended_rows.tolist()) == ([0], [1])
    assert slab.final_observations.tolist() == [[1.0]]
    assert slab.observations[1].tolist() == [[1.0], [0.0]]  # rows without an action have the observation of another row


def test_rows_that_nobody_has_hold_observations_of_the_space() -> None:
    writer = SlabWriter(2, 3, spaces.Discrete(70, start=5), spaces.Discrete(2))
    for _ in range(2):
        flags, row = np.zeros((2, 1), np.bool_), np.array([1])
        writer.add(Transitions(np.array([6]), np.zeros(1, int), np.ones(1), flags[0], flags[1], np.array([7]), row))
    slab = writer.take()
    assert slab.observations.tolist() == [[6, 6, 6], [6, 6, 6]]
    assert slab.last_observations.tolist() == [6, 7, 6]
