"""Existing vector environments as fleets: what they do stays theirs, and what they lack is refused."""

from __future__ import annotations

import functools
from multiprocessing import resource_tracker
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import envfleet
from envfleet.errors import InvalidArgument, ResetNeeded
from envfleet.testing import CountingEnv, mismatches

NUM_ENVS = 3

resource_tracker.ensure_running()  # a process of Python's own, which stays; Gymnasium's class starts it


def make_async() -> Any:
    env_fns = [functools.partial(CountingEnv, 3 + index) for index in range(NUM_ENVS)]
    return AsyncVectorEnv(env_fns, shared_memory=False)


def make_envpool(num_envs: int = NUM_ENVS) -> Any:
    import envpool

    return envpool.make("CartPole-v1", env_type="gymnasium", num_envs=num_envs, seed=3)


def make_atari() -> Any:
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(game="pong", num_envs=NUM_ENVS)


@pytest.mark.filterwarnings("ignore:.*(EnvPool seeds are fixed|precision lowered).*:UserWarning")
@pytest.mark.parametrize("make", [make_async, make_envpool, make_atari])
def test_does_what_it_did(make: Any) -> None:
    """Two of a kind, one adopted: the same trajectories, and episodes that add up."""
    own, returns, lengths = make(), np.zeros(NUM_ENVS), np.zeros(NUM_ENVS, np.int64)
    with envfleet.adopt(make(), record_episodes=True) as fleet:
        assert f"adopted a {type(own).__name__}".split()[-1] in fleet.plan.reason
        name = type(own).__name__ if fleet.spec is None else fleet.spec.id
        assert repr(fleet).startswith(f"<Fleet {name}: ")
        assert not mismatches(own.reset(seed=5)[0], fleet.reset(seed=5)[0])
        fleet.action_space.seed(0)
        has_ended, kept = np.zeros(NUM_ENVS, np.bool_), []
        for _ in range(60):
            actions = fleet.action_space.sample()
            *expected, infos = own.step(actions)
            *actual, own_infos = fleet.step(actions)
            assert actual[0] in fleet.observation_space
            kept.append((actual[0], np.array(expected[0])))
            assert all(np.array_equal(one, other) for one, other in zip(expected, actual, strict=True))
            assert set(infos) <= set(own_infos)
            returns, lengths = np.where(has_ended, 0, returns + expected[1]), np.where(has_ended, 0, lengths + 1)
            has_ended = expected[2] | expected[3]
            assert actual[1].dtype == np.float64
            np.testing.assert_array_equal(fleet.episode_lengths, lengths)
            np.testing.assert_array_equal(fleet.episode_returns, returns)
            assert fleet.terminated_indices == np.flatnonzero(has_ended).tolist()
            if has_ended.any():
                np.testing.assert_array_equal(own_infos["episode"]["l"], np.where(has_ended, lengths, 0))
        assert fleet.stats().steps == 60 * NUM_ENVS
        for array, before in kept:
            np.testing.assert_array_equal(array, before)
    own.close()


@pytest.mark.filterwarnings("ignore:.*precision lowered.*:UserWarning")
@pytest.mark.parametrize("make", [make_async, make_envpool])
def test_some_can_be_reset(make: Any) -> None:
    with envfleet.adopt(make()) as fleet:
        fleet.reset()
        before = fleet.step(np.zeros(NUM_ENVS, np.int64))[0]
        observations, _ = fleet.reset(options={"reset_mask": np.array([True, False, True])})
        np.testing.assert_array_equal(observations[1], before[1])
        assert not np.array_equal(observations[0], before[0])
        assert fleet.episode_lengths.tolist() == [0, 1, 0]
        assert fleet.reset_envs([1])[0].shape == (1, *(fleet.single_observation_space.shape or ()))
        assert fleet.step(np.zeros(NUM_ENVS, np.int64))[0].shape == observations.shape


def note(calls: list[str], name: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    calls.append(name)
    return function(*args, **kwargs)


@pytest.mark.filterwarnings("ignore:.*precision lowered.*:UserWarning")
@pytest.mark.parametrize("make", [make_envpool, make_atari])
def test_steps_are_sent_without_waiting(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own, calls = make(), list[str]()
    vector_env = make()
    for name in ("send", "recv"):
        monkeypatch.setattr(vector_env, name, functools.partial(note, calls, name, getattr(vector_env, name)))
    with envfleet.adopt(vector_env, record_episodes=True) as fleet:
        own.reset()
        fleet.reset()
        for _ in range(40):
            actions = fleet.action_space.sample()
            calls.clear()
            fleet.send(actions)
            assert calls == ["send"]
            batch = fleet.recv()
            assert calls == ["send", "recv"]
            expected = own.step(actions)
            if make is make_envpool:  # ale-py draws its seeds itself
                assert all(np.array_equal(one, other) for one, other in zip(expected[:4], batch[:4], strict=True))
            assert batch.env_indices.tolist() == [0, 1, 2]
        assert fleet.stats().steps == 40 * NUM_ENVS
    own.close()


def test_atari_takes_a_seed_for_each() -> None:
    with envfleet.adopt(make_atari()) as fleet, envfleet.adopt(make_atari()) as other:
        actions = np.random.default_rng(0).integers(0, 6, (80, NUM_ENVS))
        fleet.reset(seed=[7, 3, 3])
        other.reset(seed=[3, 7, 9])
        other.reset_envs([2, 1], seeds=[3, None])  # row 2 now has seed 3, row 1 continues
        other.reset(seed=[None, 7, None], options={"reset_mask": np.array([False, True, False])})
        for action in actions:
            action[1:] = action[0]
            one, two = fleet.step(action)[0], other.step(action)[0]
        np.testing.assert_array_equal(one[[0, 1, 2]], two[[1, 0, 2]])
        fleet.reset(seed=5, options={"reset_mask": np.array([False, True, False])})  # 6
        other.reset_envs([0], seeds=[6])
        for action in actions:
            action[1:] = action[0]
            one, two = fleet.step(action)[0], other.step(action)[0]
        np.testing.assert_array_equal(one[1], two[0])


@pytest.mark.filterwarnings("ignore:.*(EnvPool seeds are fixed|precision lowered).*:UserWarning")
def test_envpool_returns_those_that_are_ready() -> None:
    import envpool

    vector_env: Any = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=6, batch_size=2, seed=3)
    own = make_envpool(6)
    with envfleet.adopt(vector_env, record_episodes=True) as fleet:
        assert fleet.batch_size == 2
        np.testing.assert_array_equal(fleet.reset(seed=0)[0], own.reset()[0])
        with pytest.raises(InvalidArgument, match="reset all"):
            fleet.reset_envs([0])
        rng, total, lengths = np.random.default_rng(0), 0, np.zeros(6, np.int64)
        for _ in range(30):
            actions = rng.integers(0, 2, 6)
            expected = own.step(actions)
            fleet.send(actions[[5, 0, 3]], [5, 0, 3])
            fleet.send(actions[[1, 2, 4]], [1, 2, 4])
            batches = [fleet.recv(), fleet.recv(env_indices=[4]), fleet.recv(), fleet.recv()]
            assert [len(batch.env_indices) for batch in batches] == [2, 1, 2, 1]
            for batch in batches:
                for one, other in zip(expected[:4], batch[:4], strict=True):
                    np.testing.assert_array_equal(one[batch.env_indices], other)
                total += len(batch.infos["episode"]["r"]) if "episode" in batch.infos else 0
            rows = np.concatenate([batch.env_indices for batch in batches])
            assert sorted(rows.tolist()) == list(range(6))
            lengths = np.where(expected[4]["elapsed_step"] == 0, 0, lengths + 1)
            np.testing.assert_array_equal(fleet.episode_lengths, lengths)
        assert total
        actions = rng.integers(0, 2, 6)
        for one, other in zip(own.step(actions)[:4], fleet.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(one, other)
        fleet.send([0], [1])
        with pytest.raises(InvalidArgument, match="returns 2 sub-environments at once, but 1 are under way: send more"):
            fleet.recv()
        fleet.send([0], [2])
        assert sorted(fleet.recv().env_indices.tolist()) == [1, 2]


@pytest.mark.filterwarnings("ignore:.*precision lowered.*:UserWarning")
def test_batches_that_cannot_be_sent_are_refused() -> None:
    import envpool
    from ale_py.vector_env import AtariVectorEnv

    uneven: Any = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=5, batch_size=2)
    with pytest.raises(InvalidArgument, match="num_envs must be a multiple: make it with batch_size=num_envs"):
        envfleet.adopt(uneven)
    atari = AtariVectorEnv(game="pong", num_envs=4, batch_size=2)
    with pytest.raises(InvalidArgument, match=r"send\(\) takes no indices of sub-environments"):
        envfleet.adopt(atari)
    atari.close()


def test_what_it_cannot_do_is_refused_in_words() -> None:
    env_fns = [functools.partial(CountingEnv, 2)] * NUM_ENVS
    with envfleet.adopt(SyncVectorEnv(env_fns, autoreset_mode=AutoresetMode.SAME_STEP)) as fleet:
        fleet.reset(seed=0)
        zeros = np.zeros(NUM_ENVS, np.int64)
        calls: dict[str, Any] = {
            "send.. of 1 of 3": lambda: fleet.send(zeros[:1], [0]),
            "get_state": fleet.get_state,
            "apply": lambda: fleet.apply(lambda env: env),
            "stacks": fleet.stacks,
            "pass one for all": lambda: fleet.reset(options=[None, None, {"start": 1}]),
        }
        for words, call in calls.items():
            with pytest.raises(InvalidArgument, match=words):
                call()
        fleet.send(zeros)
        with pytest.raises(InvalidArgument, match=r"recv\(\) of 1 of 3"):
            fleet.recv(env_indices=[0])
        assert fleet.recv().env_indices.tolist() == [0, 1, 2]
        fleet.step(zeros)
        assert fleet.final_observations[:, 0].tolist() == [2, 2, 2]
        rollout = fleet.rollout("random", 4, seed=0)
        assert rollout.rewards.shape == (4, NUM_ENVS)
        assert len(rollout.episodes) == 2 * NUM_ENVS


def test_attributes_behind_a_vector_wrapper() -> None:
    """Gymnasium's vector wrappers pass on neither `call` nor `set_attr`."""
    env_fns = [functools.partial(CountingEnv, 2)] * NUM_ENVS
    with envfleet.adopt(RecordEpisodeStatistics(SyncVectorEnv(env_fns))) as fleet:
        assert fleet.get_attr("length") == (2,) * NUM_ENVS
        fleet.set_attr("length", [3, 4, 5])
        assert fleet.call("length") == (3, 4, 5)


def test_attributes_of_a_vector_environment_without_access() -> None:
    class Bare(VectorEnv[Any, Any, Any]):
        num_envs = 2
        single_observation_space = single_action_space = Discrete(2)

        def reset(self, **kwargs: Any) -> Any:
            return np.zeros(2, np.int64), {}

    fleet = envfleet.adopt(Bare())
    for call in (lambda: fleet.get_attr("length"), lambda: fleet.set_attr("length", 3)):
        with pytest.raises(AttributeError, match=r"the adopted Bare has no method .* neither read nor set"):
            call()
    fleet.close()


def test_what_is_returned_is_the_callers_own() -> None:
    env_fns = [functools.partial(CountingEnv, 2)] * NUM_ENVS
    zeros = np.zeros(NUM_ENVS, np.int64)
    with envfleet.adopt(SyncVectorEnv(env_fns, autoreset_mode=AutoresetMode.SAME_STEP)) as fleet:
        observations, _ = fleet.reset(seed=0)
        before = observations.copy()
        observations /= 100
        np.testing.assert_array_equal(fleet.rollout("random", 1, seed=0).observations[0], before)
        observations, *_, infos = fleet.step(zeros)
        before, last = observations.copy(), infos["final_obs"][1].copy()
        observations /= 100
        infos["final_obs"][1][:] = 7
        np.testing.assert_array_equal(fleet.final_observations[1], last)
        np.testing.assert_array_equal(fleet.rollout("random", 1, seed=0).observations[0], before)


@pytest.mark.parametrize("value", [CountingEnv(), gym.make("CartPole-v1"), None])
def test_what_is_no_vector_environment(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"without '.*', expected a gymnasium.vector.VectorEnv: .*make\(\)"):
        envfleet.adopt(value)


def test_a_fleet_is_a_fleet_already() -> None:
    with (
        envfleet.make(CountingEnv, 2, backend="serial") as fleet,
        pytest.raises(InvalidArgument, match="needs no adoption"),
    ):
        envfleet.adopt(fleet)


class BreakingEnv(SyncVectorEnv):
    """Raises in its second step what would be harmless from an engine of ours."""

    left = 1

    def step(self, actions: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise AttributeError("half of them have stepped")
        return super().step(actions)


def test_an_error_wants_a_reset() -> None:
    with envfleet.adopt(BreakingEnv([CountingEnv] * 2)) as fleet:
        fleet.reset(seed=0)
        fleet.step([0, 0])
        with pytest.raises(AttributeError, match="half"):
            fleet.step([0, 0])
        with pytest.raises(ResetNeeded):
            fleet.step([0, 0])
        fleet.reset(seed=0)
        with pytest.raises(AttributeError, match="unheard_of"):
            fleet.get_attr("unheard_of")
        assert fleet.get_attr("count") == (0, 0)


@pytest.mark.filterwarnings("ignore:.*(EnvPool seeds are fixed|precision lowered).*:UserWarning")
@pytest.mark.parametrize("actions", [[0.7, 1.0], [0, 7], [0, -1], [1]], ids=str)
def test_wrong_actions_are_refused_before_anything_is_stepped(actions: list[float]) -> None:
    """Also of EnvPool, which steps whatever it is given, or ends the process."""
    with envfleet.adopt(make_envpool(2)) as fleet:
        fleet.reset()
        with pytest.raises(InvalidArgument, match="actions"):
            fleet.step(np.array(actions))
        assert fleet.step(np.array([0, 1]))[0].shape == (2, 4)


class _UndrawableEnv(CountingEnv):
    def render(self) -> Any:
        raise RuntimeError("no display")


def test_a_render_that_fails_changes_nothing() -> None:
    with envfleet.adopt(SyncVectorEnv([_UndrawableEnv] * 2)) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(RuntimeError, match="no display"):
            fleet.render()
        assert fleet.step(np.zeros(2, np.int64))[0][:, 0].tolist() == [1, 1]
