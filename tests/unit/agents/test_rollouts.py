"""Rollouts that are recorded from transitions."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from envfleet.agents.rollouts import TransitionRecorder
from envfleet.agents.transitions import Transitions


def test_episodes_that_nobody_finishes_leave_nothing_to_the_next() -> None:
    """Cut right after a rollout was taken: what they had so far is not the next episodes'."""
    recorder = TransitionRecorder(2, 1, spaces.Box(0, 1, (1,)), spaces.Discrete(2))

    def add(ends: bool) -> None:
        flag, nothing = np.array([ends]), np.array([False])
        observation, action, reward = np.zeros((1, 1)), np.zeros(1, np.int64), np.ones(1)
        recorder.add(Transitions(observation, action, reward, flag, nothing, observation, np.array([0])))

    add(ends=False)
    add(ends=False)
    recorder.take()
    recorder.cut(np.array([0]))
    add(ends=False)
    add(ends=True)
    rollout = recorder.take()
    assert (rollout.episodes.steps.tolist(), rollout.truncated.tolist()) == ([1], [[False], [False]])
    assert (rollout.episodes.returns.tolist(), rollout.episodes.lengths.tolist()) == ([2.0], [2])
    assert rollout.episodes.ids.tolist() == [1]


def test_a_failed_step_is_left_out_and_ends_its_episode() -> None:
    recorder = TransitionRecorder(3, 2, spaces.Box(0, 9, (1,)), spaces.Discrete(2))

    def add(*rows: int) -> None:
        flags, index = np.zeros((2, len(rows)), np.bool_), np.array(rows)
        value = np.full((len(rows), 1), float(len(recorder)))
        actions, rewards = np.zeros(len(rows), np.int64), np.ones(len(rows))
        recorder.add(Transitions(value, actions, rewards, flags[0], flags[1], value + 1, index))

    add(0, 1)
    recorder.cut(np.array([1]))
    add(0)
    add(0, 1)
    rollout = recorder.take()
    assert rollout.is_reset.tolist() == [[False, False], [False, True], [False, False]]
    assert rollout.truncated.tolist() == [[False, True], [False, False], [False, False]]
    assert (rollout.episodes.steps.tolist(), rollout.episodes.env_indices.tolist()) == ([0], [1])
    assert rollout.episodes.observations.tolist() == [[1.0]]
    assert rollout.observations[1].tolist() == [
        [1.0],
        [0.0],
    ]  # without an action: of another row


def test_rows_that_nobody_has_hold_observations_of_the_space() -> None:
    recorder = TransitionRecorder(2, 3, spaces.Discrete(70, start=5), spaces.Discrete(2))
    for _ in range(2):
        flags, row = np.zeros((2, 1), np.bool_), np.array([1])
        recorder.add(Transitions(np.array([6]), np.zeros(1, int), np.ones(1), flags[0], flags[1], np.array([7]), row))
    rollout = recorder.take()
    assert rollout.observations.tolist() == [[6, 6, 6], [6, 6, 6]]
    assert rollout.last_observations.tolist() == [6, 7, 6]
