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
from packaging.version import Version

import envfleet
from envfleet.fleet.episodes import EpisodeStats
from envfleet.fleet.outcomes import find_resets

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


def entries(episodes: EpisodeStats, size: int = NUM_ENVS) -> tuple[dict[str, Any], Any]:
    """Return the episode statistics in the infos of the last step that ended an episode."""
    infos = episodes.ended_episodes().entries(size)
    return infos["episode"], infos["_episode"]


def take(episodes: EpisodeStats, rewards: Any, terminated: Any, truncated: Any, rows: Any = None) -> list[int] | None:
    return episodes.on_step(rewards, np.stack([terminated, truncated]), rows)


@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED])
def test_returns_and_lengths_equal_gymnasium_s(mode):
    vector_env: Any = RecordEpisodeStatistics(make(mode))
    vector_env.reset(seed=3)
    episodes = EpisodeStats(NUM_ENVS, mode)
    episodes.begin()
    num_ended = 0
    for _ in range(300):
        _, rewards, terminated, truncated, infos = vector_env.step(ACTIONS)
        ended = take(episodes, rewards, terminated, truncated)
        status = episodes.status()
        assert np.array_equal(status.returns, vector_env.episode_returns)
        assert np.array_equal(status.lengths, vector_env.episode_lengths)
        assert np.array_equal(status.ended, terminated | truncated)
        assert len(episodes.over) == (terminated | truncated).sum()
        assert (ended is not None) == ("episode" in infos)
        if ended is None:
            continue
        num_ended += len(ended)
        actual, mask = entries(episodes)
        assert np.array_equal(mask, infos["_episode"])
        for key, dtype in {"r": np.float64, "l": np.int64}.items():
            assert actual[key].dtype == dtype
            assert np.array_equal(actual[key], infos["episode"][key])
        if mode is DISABLED:
            vector_env.reset(options={"reset_mask": mask})
            episodes.begin(np.flatnonzero(mask).tolist())
    assert num_ended == vector_env.episode_count > 100


def test_same_step_equals_gymnasium_s_single_wrapper():
    # Not its vector wrapper: in this mode that one takes the first step of an episode for a reset, and drops it.
    vector_env = make(SAME_STEP, lambda: RecordOne(DiceEnv()))
    vector_env.reset(seed=3)
    episodes = EpisodeStats(NUM_ENVS, SAME_STEP)
    episodes.begin()
    num_ended = 0
    for _ in range(300):
        _, rewards, terminated, truncated, infos = vector_env.step(ACTIONS)
        ended = take(episodes, rewards, terminated, truncated)
        assert not episodes.over
        assert (ended is not None) == ("final_info" in infos)
        if ended is None:
            continue
        actual, mask = entries(episodes)
        num_ended += len(ended)
        expected = infos["final_info"]["episode"]
        assert np.array_equal(mask, terminated | truncated)
        assert np.array_equal(actual["r"], expected["r"])
        assert np.array_equal(actual["l"], expected["l"])
        status = episodes.status()
        assert not status.returns[mask].any()
        assert not status.lengths[mask].any()
    assert num_ended > 100


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_gymnasium_s_vector_wrapper_agrees_where_it_is_right(mode):
    """Pins the workaround of the test above, which Gymnasium needs no more since 1.4."""
    vector_env: Any = RecordEpisodeStatistics(make(mode))
    vector_env.reset(seed=3)
    episodes = EpisodeStats(NUM_ENVS, mode)
    episodes.begin()
    ours, theirs = 0, 0
    for _ in range(100):
        _, rewards, terminated, truncated, infos = vector_env.step(ACTIONS)
        ended = take(episodes, rewards, terminated, truncated)
        if ended is not None:
            ours += entries(episodes)[0]["l"].sum()
            theirs += infos["episode"]["l"].sum()
    is_fixed = Version(gym.__version__) >= Version("1.4.0a1")
    assert (ours == theirs) == (is_fixed or mode is NEXT_STEP)


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
    episodes, plain = EpisodeStats(4, mode), Plain(mode)
    episodes.begin()
    for i in range(4):
        plain.begin(i)
    for step in steps:
        able = [i for i in range(4) if mode is not DISABLED or not plain.rows[i]["ended"]]
        order = data.draw(st.permutations(able))[: data.draw(st.integers(0, len(able)))]
        is_whole = len(able) == 4 and data.draw(st.booleans())
        rows = list(range(4)) if is_whole else order
        rewards = np.array([step[i][0] for i in rows], np.float64)
        terminated, truncated = (np.array([step[i][k] for i in rows], bool) for k in (1, 2))
        ended = take(episodes, rewards, terminated, truncated, None if is_whole else np.array(rows, np.intp))
        expected = plain.step({i: step[i] for i in rows})
        assert {rows[k] for k in ended or ()} == set(expected)
        if ended is not None:
            actual, mask = entries(episodes, len(rows))
            assert np.flatnonzero(mask).tolist() == ended
            for k, i in enumerate(rows):
                numbers = tuple(actual[key][k] for key in ("r", "l", "id"))
                assert numbers == expected.get(i, (0, 0, -1))
        if data.draw(st.booleans()):
            again = data.draw(st.lists(st.integers(0, 3), unique=True))
            episodes.begin(again)
            for i in sorted(again):
                plain.begin(i)
        status = episodes.status()
        assert status.ids.tolist() == [row["id"] for row in plain.rows]
        assert status.returns.tolist() == [row["r"] for row in plain.rows]
        assert status.lengths.tolist() == [row["l"] for row in plain.rows]
        assert status.ended.tolist() == [row["ended"] and mode is not SAME_STEP for row in plain.rows]
        assert len(episodes.over) == status.ended.sum()


def test_before_the_first_reset_there_is_no_episode():
    episodes = EpisodeStats(2, NEXT_STEP)
    assert episodes.status().ids.tolist() == [-1, -1]
    assert not episodes.over


@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED])
def test_numbers_stay_until_the_next_episode_begins(mode):
    episodes = EpisodeStats(2, mode)
    episodes.begin()
    take(episodes, np.array([1.5, 2.0]), [True, False], [False, False])
    assert [part.tolist() for part in episodes.status()] == [[0, 1], [1.5, 2.0], [1, 1], [True, False]]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_seconds_count_from_the_beginning_of_the_episode(mode, monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    episodes = EpisodeStats(2, mode)
    episodes.begin()
    zeros, no, yes = np.zeros(2), np.zeros(2, bool), np.array([False, True])
    now = 101.23456789
    take(episodes, zeros, no, yes)
    assert entries(episodes, 2)[0]["t"].tolist() == [0.0, 1.234568]
    now = 110.0
    episodes.begin([1]) if mode is DISABLED else take(episodes, zeros, no, no)
    began = 101.23456789 if mode is SAME_STEP else 110.0
    now = 112.0
    take(episodes, zeros, yes, no)
    assert entries(episodes, 2)[0]["t"].tolist() == [0.0, round(now - began, 6)]


def test_what_was_handed_out_does_not_change():
    episodes = EpisodeStats(2, SAME_STEP)
    episodes.begin()
    take(episodes, np.ones(2), [True, False], [False, False])
    status, ended = episodes.status(), episodes.ended_episodes()
    before = [array.copy() for array in status]
    for _ in range(3):
        take(episodes, np.ones(2), [True, True], [False, False])
    assert all(np.array_equal(*pair) for pair in zip(status, before, strict=True))
    assert ended.returns.tolist() == [1.0]
    for array in status:
        array[:] = 1
    assert episodes.status().ids.tolist() == [8, 7]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_restored_episode_has_a_number_of_its_own(mode):
    episodes = EpisodeStats(3, mode)
    episodes.begin()
    take(episodes, np.ones(3), [True, False, False], [False, False, False])
    take(episodes, np.ones(3), [False] * 3, [False] * 3)
    state, number = episodes.save(1), episodes.status().ids.max()
    episodes.restore(2, state)
    status = episodes.status()
    assert (status.returns[2], status.lengths[2], status.ended[2]) == state
    assert status.ids[2] > number


@pytest.mark.parametrize("options", [{"backend": "serial"}, {"backend": "kernel"}, {"backend": "kernel", "workers": 2}])
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_engines_give_the_episodes_that_ended(options: dict[str, Any], mode: AutoresetMode) -> None:
    """Of whole and partial steps, without `record_episodes`, against sums over the steps."""
    kwargs: dict[str, Any] = {"autoreset_mode": mode, "final_infos": False, "max_episode_steps": 12, **options}
    totals, counts, num_ended = np.zeros(4), np.zeros(4, np.int64), 0
    with envfleet.make("envfleet/CartPole-v1", 4, **kwargs) as fleet:
        fleet.reset(seed=0)
        for step in range(60):
            rows = np.arange(4) if step % 3 else np.array([2, 0, 3])
            if step % 3:
                _, rewards, terminated, truncated, _ = fleet.step(np.ones(4, np.int64))
            else:
                fleet.send(np.ones(3, np.int64), rows)
                _, rewards, terminated, truncated, _, _ = fleet.recv(env_indices=rows)
            totals[rows] += rewards
            counts[rows] += ~find_resets(fleet.engine, rows)
            places = np.flatnonzero(terminated | truncated)
            if not len(places):
                continue
            ended, which = fleet.engine.ended_episodes(), rows[places]
            num_ended += len(places)
            assert ended.rows.tolist() == places.tolist()
            assert ended.returns.tolist() == totals[which].tolist()
            assert ended.lengths.tolist() == counts[which].tolist()
            assert (ended.ids % 4).tolist() == which.tolist()
            assert (ended.seconds >= 0).all()
            totals[which], counts[which] = 0.0, 0
    assert num_ended > 10
