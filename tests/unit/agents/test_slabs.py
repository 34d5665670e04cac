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
    writer.cut()
    add(ends=False)
    add(ends=True)
    slab = writer.take()
    assert (slab.ended_steps.tolist(), slab.truncated.tolist()) == ([1], [[False], [False]])
