"""Episodes are counted as Gymnasium counts them, and number and times are right."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import hypothesis.strategies as st
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics as RecordOne
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given

from envfleet.core.episodes import EndedEpisodes, Episodes

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


class DiceEnv(gym.Env[int, int]):
    """Rewards and ends are drawn, so that lengths vary and several sub-environments end together."""

    observation_space: gym.Space[Any] = gym.spaces.Discrete(2)
    action_space: gym.Space[Any] = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward, end, cut = self.np_random.random(3)
        return 0, reward - 0.3, bool(end < 0.2), bool(cut < 0.1), {}


NUM_ENVS = 7
ACTIONS = np.zeros(NUM_ENVS, np.int64)


class KeepingOptions(SyncVectorEnv):
    """Leaves the caller's options alone: Gymnasium's own removes the mask its RecordEpisodeStatistics looks for."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options=None if options is None else dict(options))


def make(mode: AutoresetMode, env: Any = DiceEnv) -> Any:
    return KeepingOptions([env] * NUM_ENVS, autoreset_mode=mode)


def entry(ended: EndedEpisodes | None) -> tuple[dict[str, Any], Any]:
    assert ended is not None
    return ended.entry()


@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED])
def test_returns_and_lengths_equal_gymnasium_s(mode):
    vector_env: Any = RecordEpisodeStatistics(make(mode))
    vector_env.reset(seed=3)
    episodes = Episodes(NUM_ENVS, mode)
    episodes.on_reset()
    num_ended = 0
    for _ in range(300):
        _, rewards, terminated, truncated, infos = vector_env.step(ACTIONS)
        ended = episodes.on_step(rewards, terminated, truncated)
        assert np.array_equal(episodes.returns, vector_env.episode_returns)
        assert np.array_equal(episodes.lengths, vector_env.episode_lengths)
        assert np.array_equal(episodes.ended, terminated | truncated)
        assert episodes.has_ended == (terminated | truncated).any()
        assert (ended is not None) == ("episode" in infos)
        if ended is None:
            continue
        num_ended += ended.rows.size
        found, mask = ended.entry()
        assert np.array_equal(mask, infos["_episode"])
        for key, dtype in {"r": np.float64, "l": np.int64}.items():
            assert found[key].dtype == dtype
            assert np.array_equal(found[key], infos["episode"][key])
        if mode is DISABLED:
            vector_env.reset(options={"reset_mask": mask})
            episodes.on_reset(np.flatnonzero(mask))
    assert num_ended == vector_env.episode_count > 100


def test_same_step_equals_gymnasium_s_single_wrapper():
    # Not its vector wrapper: in this mode that one takes the first step of an episode for a reset, and drops it.
    vector_env = make(SAME_STEP, lambda: RecordOne(DiceEnv()))
    vector_env.reset(seed=3)
    episodes = Episodes(NUM_ENVS, SAME_STEP)
    episodes.on_reset()
    num_ended = 0
    for _ in range(300):
        _, rewards, terminated, truncated, infos = vector_env.step(ACTIONS)
        ended = episodes.on_step(rewards, terminated, truncated)
        assert not episodes.has_ended
        assert not episodes.ended.any()
        assert (ended is not None) == ("final_info" in infos)
        if ended is None:
            continue
        found, mask = ended.entry()
        num_ended += ended.rows.size
        expected = infos["final_info"]["episode"]
        assert np.array_equal(mask, terminated | truncated)
        assert np.array_equal(found["r"], expected["r"])
        assert np.array_equal(found["l"], expected["l"])
        assert not episodes.returns[mask].any()
        assert not episodes.lengths[mask].any()
    assert num_ended > 100


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_gymnasium_s_vector_wrapper_agrees_where_it_is_right(mode):
    """Pins what the test above works around: should this fail, Gymnasium has been mended and both modes can be one."""
    vector_env: Any = RecordEpisodeStatistics(make(mode))
    vector_env.reset(seed=3)
    episodes = Episodes(NUM_ENVS, mode)
    episodes.on_reset()
    ours, theirs = 0, 0
    for _ in range(100):
        _, rewards, terminated, truncated, infos = vector_env.step(ACTIONS)
        ended = episodes.on_step(rewards, terminated, truncated)
        if ended is not None:
            ours += ended.lengths[ended.mask].sum()
            theirs += infos["episode"]["l"].sum()
    assert (ours == theirs) == (mode is NEXT_STEP)


STEPS = st.lists(
    st.lists(st.tuples(st.integers(-9, 9), st.booleans(), st.booleans()), min_size=4, max_size=4), max_size=15
)


class Plain:
    """The same rules, one sub-environment at a time."""

    def __init__(self, mode: AutoresetMode) -> None:
        self.mode, self.begun = mode, [0] * 4
        self.rows: list[dict[str, Any]] = [{"id": -1, "r": 0.0, "l": 0, "ended": False} for _ in range(4)]

    def begin(self, i: int) -> None:
        self.rows[i] = {"id": i + 4 * self.begun[i], "r": 0.0, "l": 0, "ended": False}
        self.begun[i] += 1

    def step(self, batch: dict[int, tuple[int, bool, bool]]) -> dict[int, tuple[float, int, int]]:
        ended, again = {}, []
        for i, (reward, terminated, truncated) in sorted(batch.items()):
            row = self.rows[i]
            if row["ended"] and self.mode is NEXT_STEP:
                self.begin(i)
                row = self.rows[i]
            else:
                row["r"] += reward
                row["l"] += 1
            if terminated or truncated:
                ended[i] = (row["r"], row["l"], row["id"])
                row["ended"] = True
                again.append(i)
        if self.mode is SAME_STEP:
            for i in again:
                self.begin(i)
        return ended


@pytest.mark.parametrize("mode", list(AutoresetMode))
@given(STEPS, st.data())
def test_any_rows_in_any_order(mode, steps, data):
    """Asynchronous batches, whole steps and partial resets in any mixture, against a plain account."""
    episodes, plain = Episodes(4, mode), Plain(mode)
    episodes.on_reset()
    for i in range(4):
        plain.begin(i)
    for step in steps:
        able = [i for i in range(4) if mode is not DISABLED or not plain.rows[i]["ended"]]
        order = data.draw(st.permutations(able))[: data.draw(st.integers(0, len(able)))]
        is_whole = len(able) == 4 and data.draw(st.booleans())
        rows = list(range(4)) if is_whole else order
        rewards = np.array([step[i][0] for i in rows], np.float64)
        terminated, truncated = (np.array([step[i][k] for i in rows], bool) for k in (1, 2))
        ended = episodes.on_step(rewards, terminated, truncated, None if is_whole else np.array(rows, np.intp))
        expected = plain.step({i: step[i] for i in rows})
        if ended is None:
            assert expected == {}
        else:
            found, mask = ended.entry()
            assert {rows[k] for k in np.flatnonzero(mask)} == set(expected)
            for k, i in enumerate(rows):
                numbers = tuple(found[key][k] for key in ("r", "l", "id"))
                assert numbers == expected.get(i, (0, 0, -1))
        if data.draw(st.booleans()):
            again = data.draw(st.lists(st.integers(0, 3), unique=True))
            episodes.on_reset(np.array(again, np.intp))
            for i in sorted(again):
                plain.begin(i)
        assert episodes.ids.tolist() == [row["id"] for row in plain.rows]
        assert episodes.returns.tolist() == [row["r"] for row in plain.rows]
        assert episodes.lengths.tolist() == [row["l"] for row in plain.rows]
        assert episodes.ended.tolist() == [row["ended"] and mode is not SAME_STEP for row in plain.rows]
        assert episodes.has_ended == episodes.ended.any()


def test_before_the_first_reset_there_is_no_episode():
    episodes = Episodes(2, NEXT_STEP)
    assert episodes.ids.tolist() == [-1, -1]
    assert not episodes.has_ended


def test_numbers_stay_until_the_next_episode_begins():
    for mode in (NEXT_STEP, DISABLED):
        episodes = Episodes(2, mode)
        episodes.on_reset()
        episodes.on_step(np.array([1.5, 2.0]), np.array([True, False]), np.zeros(2, bool))
        assert episodes.returns.tolist() == [1.5, 2.0]
        assert episodes.lengths.tolist() == [1, 1]
        assert episodes.ids.tolist() == [0, 1]
        assert episodes.ended.tolist() == [True, False]


def test_the_reward_of_a_reset_row_does_not_count():
    episodes = Episodes(1, NEXT_STEP)
    episodes.on_reset()
    yes, no = np.array([True]), np.array([False])
    episodes.on_step(np.array([1.0]), yes, no)
    assert episodes.on_step(np.array([5.0]), no, no) is None
    assert episodes.returns.tolist() == [0.0]
    assert episodes.lengths.tolist() == [0]
    found, _ = entry(episodes.on_step(np.array([2.0]), no, yes))
    assert (found["r"].item(), found["l"].item(), found["id"].item()) == (2.0, 1, 1)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_seconds_count_from_the_beginning_of_the_episode(mode, monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    episodes = Episodes(2, mode)
    episodes.on_reset()
    zeros, no, yes = np.zeros(2), np.zeros(2, bool), np.array([False, True])
    now = 101.23456789
    found, _ = entry(episodes.on_step(zeros, no, yes))
    assert found["t"].tolist() == [0.0, 1.234568]
    now = 110.0
    episodes.on_reset(np.array([1])) if mode is DISABLED else episodes.on_step(zeros, no, no)
    began = 101.23456789 if mode is SAME_STEP else 110.0
    now = 112.0
    found, _ = entry(episodes.on_step(zeros, yes, no))
    assert found["t"].tolist() == [0.0, round(now - began, 6)]


def test_what_was_handed_out_does_not_change():
    episodes = Episodes(2, SAME_STEP)
    episodes.on_reset()
    terminated = np.array([True, False])
    ended = episodes.on_step(np.ones(2), terminated, np.zeros(2, bool))
    kept = (episodes.ids, episodes.returns, episodes.lengths, episodes.ended)
    before = [array.copy() for array in kept]
    terminated[:] = True
    for _ in range(3):
        episodes.on_step(np.ones(2), terminated, np.zeros(2, bool))
    assert all(np.array_equal(*pair) for pair in zip(kept, before, strict=True))
    found, mask = entry(ended)
    assert found["r"].tolist() == [1.0, 0.0]
    assert mask.tolist() == [True, False]
    for array in (*kept, mask, found["r"]):
        array[:] = 1
    assert episodes.ids.tolist() == [8, 7]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_many_that_end_at_once_are_counted_as_each_would_be(mode):
    size = 40  # beyond a few, numpy does what is done one by one for few
    together = Episodes(size, mode)
    alone = [Episodes(1, mode, first=i, stride=size) for i in range(size)]
    together.on_reset()
    for one in alone:
        one.on_reset()
    rng = np.random.default_rng(0)
    for share in (0.0, 0.9, 0.1, 1.0, 0.5, 0.0):
        rewards, (terminated, truncated) = rng.random(size), rng.random((2, size)) < share
        ended = together.on_step(rewards, terminated, truncated)
        for i, one in enumerate(alone):
            its = one.on_step(rewards[i : i + 1], terminated[i : i + 1], truncated[i : i + 1])
            assert (its is not None) == (ended is not None and bool(ended.mask[i]))
            if its is not None:
                assert ended is not None
                assert (ended.returns[i], ended.lengths[i], ended.ids[i]) == (its.returns, its.lengths, its.ids)
        for name in ("ids", "returns", "lengths", "ended"):
            assert getattr(together, name).tolist() == [getattr(one, name)[0] for one in alone]
