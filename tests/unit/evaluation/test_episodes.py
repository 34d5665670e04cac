"""The assignment of episodes to sub-environments, and policies that always see blocks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from envfleet.errors import InvalidArgument
from envfleet.evaluation.episodes import BLOCK_ROWS, BlockPolicy, EpisodeSchedule


def test_all_episodes_are_played_and_none_shares_a_row() -> None:
    rng = np.random.default_rng(0)
    for num_episodes, num_envs in itertools.product((1, 127, 128, 300), (1, 7, 64, 130, 256)):
        schedule, played = EpisodeSchedule(range(num_episodes), num_envs), list[int]()
        rows = np.arange(num_envs)
        while len(schedule.assign(rows)) or len(schedule.rows):
            playing = schedule.episodes[schedule.rows]
            assert len({*(playing % schedule.num_places)}) == len(playing)
            ended = rng.permutation(schedule.rows)[: rng.integers(1, len(playing) + 1)]
            played += schedule.episodes[ended].tolist()
            rows = np.concatenate((ended, np.flatnonzero(schedule.episodes < 0)))
        assert sorted(played) == list(range(num_episodes))


def test_a_straggler_keeps_its_row_and_nobody_waits() -> None:
    schedule, played = EpisodeSchedule(range(300), 4), list[int]()
    schedule.assign(np.arange(4))
    while len(assigned := schedule.assign(np.arange(1, 4))):  # sub-environment 0 plays its first episode all the time
        played += schedule.episodes[assigned].tolist()
    assert sorted(played) == [number for number in range(4, 300) if number not in (BLOCK_ROWS, 2 * BLOCK_ROWS)]
    assert schedule.assign(np.array([0])).tolist() == [0]
    assert schedule.episodes[0] == BLOCK_ROWS


def test_a_lost_episode_is_played_next() -> None:
    schedule = EpisodeSchedule(range(10), 2)
    schedule.assign(np.arange(2))
    schedule.repeat(np.array([1]))
    schedule.assign(np.array([1]))
    assert schedule.episodes.tolist() == [0, 1]


def test_a_sub_environment_keeps_its_task() -> None:
    tasks = np.repeat(np.arange(3), 4)
    schedule, changes, last = EpisodeSchedule(range(12), 2, tasks=tasks), 0, [-1, -1]
    rows = np.arange(2)
    while len(rows := schedule.assign(rows)):
        for row in rows.tolist():
            task = int(tasks[schedule.episodes[row]])
            changes, last[row] = changes + (task != last[row]), task
    assert changes <= 4  # three tasks have to be built; the last one may be shared


def test_a_policy_sees_whole_blocks_only() -> None:
    sizes = []

    class Watching:
        def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
            sizes.append(len(observations))
            assert deterministic
            return observations.sum(1)

    every = np.arange(BLOCK_ROWS + 5)
    schedule = EpisodeSchedule(range(BLOCK_ROWS + 5), BLOCK_ROWS + 5)
    schedule.assign(every)
    observations = np.arange(2.0 * (BLOCK_ROWS + 5)).reshape(-1, 2)
    policy = BlockPolicy(Watching(), schedule)
    np.testing.assert_array_equal(policy.act(observations, every), observations.sum(1))
    np.testing.assert_array_equal(policy.act(observations + 1, every[-3:]), observations[-3:].sum(1) + 2)
    assert sizes == [BLOCK_ROWS] * 3  # the last three rows are not in the first block


def test_a_policy_that_loses_rows_is_told_so() -> None:
    class Short:
        def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
            return observations[1:, 0]

    schedule = EpisodeSchedule(range(2), 2, block_rows=4)
    schedule.assign(np.arange(2))
    with pytest.raises(InvalidArgument, match=r"shape \(3,\) for a batch of 4 observations"):
        BlockPolicy(Short(), schedule, 4).act(np.zeros((2, 3)), np.arange(2))
