"""Results of `FleetVecEnv` against those of Stable-Baselines3's `DummyVecEnv`."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
)
from tests.unit.adapters.peers import EnvFns, Make
from tests.unit.adapters.sb3_cases import ALL, OURS, ROLLOUTS, SERIAL, bare, same

from envfleet.testing import CountingEnv, InfoEnv


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("name", list(ROLLOUTS))
def test_same_trajectories(ours: Make, name: str, close_later: Make) -> None:
    """Observations, rewards, dones, infos, infos of resets, seeds: step by step, to the bit and the dtype."""
    expected, actual = close_later(DummyVecEnv, ROLLOUTS[name]), close_later(ours, ROLLOUTS[name])
    assert expected.observation_space == actual.observation_space
    assert expected.action_space == actual.action_space
    assert expected.seed(5) == actual.seed(5)
    same(expected.reset(), actual.reset())
    same(expected.reset_infos, actual.reset_infos)
    expected.action_space.seed(1)
    num_ended = 0
    for _ in range(60):
        actions: Any = [expected.action_space.sample() for _ in range(expected.num_envs)]
        if not isinstance(expected.action_space, (spaces.Dict, spaces.Tuple)):
            actions = np.stack(actions)
        *results, infos = expected.step(actions)
        *own_results, own_infos = actual.step(actions)
        same(results, own_results)
        same(infos, [bare(info) for info in own_infos])
        same(expected.reset_infos, actual.reset_infos)
        assert results[2].tolist() == ["episode" in info for info in own_infos]
        num_ended += results[2].sum()
    assert num_ended > 1


@pytest.mark.parametrize("ours", OURS)
def test_episodes_as_monitor_has_them(ours: Make, close_later: Make) -> None:
    """`ep_rew_mean` is made of them. The entry of a sub-environment's `Monitor` is kept."""
    env_fns = [functools.partial(gymnasium.make, "Pendulum-v1", max_episode_steps=10)] * 2
    monitored: EnvFns = [
        lambda: Monitor(gymnasium.make("Pendulum-v1", max_episode_steps=10), info_keywords=("marked",))
    ]
    with pytest.raises(KeyError):
        run(close_later(ours, monitored), 10)  # Monitor itself asks for the keyword: it is Monitor that was at work
    expected = run(close_later(DummyVecEnv, [lambda: Monitor(env_fns[0]())] * 2), 25)
    actual = run(close_later(ours, env_fns), 25)
    kept = run(close_later(ours, [lambda: Monitor(env_fns[0]())] * 2), 25)
    assert len(expected) == 4
    for one, other, own in zip(expected, actual, kept, strict=True):
        assert other["r"] == pytest.approx(one["r"])
        assert other["l"] == own["l"] == one["l"] == 10
        assert own["r"] == one["r"]
        assert set(other) == set(one) == {"r", "l", "t"}
        assert 0 < other["t"] < 60
        assert {key: type(value) for key, value in other.items()} == {"r": float, "l": int, "t": float}
    times = [episode["t"] for episode in actual]
    assert times == sorted(times)  # seconds since the beginning, not of the episode
    assert times[0] < times[-1]


def run(env: Any, num_steps: int) -> list[dict[str, Any]]:
    """Step with the same actions and collect what is said of episodes."""
    env.seed(0)
    env.reset()
    env.action_space.seed(0)
    episodes = []
    for _ in range(num_steps):
        *_, infos = env.step(np.stack([env.action_space.sample() for _ in range(env.num_envs)]))
        episodes += [info["episode"] for info in infos if "episode" in info]
    return episodes


@pytest.mark.parametrize("options", [{"record_episodes": True}, {"final_infos": False}], ids=str)
def test_options_that_change_infos(options: dict[str, Any], close_later: Make) -> None:
    """`info["episode"]` and `terminal_observation` are there, and nothing more."""
    expected = close_later(SERIAL, [functools.partial(CountingEnv, 2)] * 2)
    actual = close_later(SERIAL, [functools.partial(CountingEnv, 2)] * 2, **options)
    for env in (expected, actual):
        env.seed(1)
        env.reset()
    for step in range(3):
        own, others = expected.step(np.zeros(2, int))[3], actual.step(np.zeros(2, int))[3]
        for info, other in zip(own, others, strict=True):
            if "final_infos" in options:
                info.pop("draw")  # the environment's own infos of the last step are left out, too
                other.pop("draw", None)
            same(bare(info), bare(other))
            assert ("episode" in other) == (step == 1)


@pytest.mark.parametrize("kind", ALL)
def test_what_is_returned_is_the_callers_own(kind: Make, close_later: Make) -> None:
    env = close_later(kind, [functools.partial(CountingEnv, 2)] * 2)
    first = env.reset()
    first[...] = -1
    observations, rewards, dones, infos = env.step(np.zeros(2, int))
    observations[...] = -1
    rewards[...] = -1
    dones[...] = True
    infos[0]["draw"] = -1
    observations, rewards, dones, infos = env.step(np.zeros(2, int))
    assert infos[0]["terminal_observation"][0] == 2
    assert (rewards.tolist(), dones.tolist()) == ([2, 2], [True, True])
    assert infos[0]["draw"] >= 0
    assert (rewards.dtype, dones.dtype) == (np.float32, np.bool_)


@pytest.mark.parametrize("kind", ALL)
def test_seeds_and_options_wait_for_the_next_reset(kind: Make, close_later: Make) -> None:
    env = close_later(kind, [functools.partial(CountingEnv, 2)] * 3)
    assert env.seed(3) == [3, 4, 5]
    first = env.reset()
    assert np.array_equal(first[:, 2], [CountingEnv().reset(seed=seed)[0][2] for seed in (3, 4, 5)])
    assert not np.array_equal(env.reset()[:, 2], first[:, 2])
    env.seed(3)
    env.set_options({"start": 2})
    env.step(np.zeros(3, int))
    again = env.reset()
    assert np.array_equal(again[:, 2], first[:, 2])
    assert again[:, 4].tolist() == [2, 2, 2]
    assert env.reset()[:, 4].tolist() == [0, 0, 0]
    env.set_options([{"start": 1}, {}, {"start": 3}])
    env.seed(3)
    apart = env.reset()
    assert apart[:, 4].tolist() == [1, 0, 3]
    assert np.array_equal(apart[:, 2], first[:, 2])
    assert env.reset()[:, 4].tolist() == [0, 0, 0]
    assert len(env.seed()) == 3
    assert None not in env.seed()


@pytest.mark.parametrize("kind", ALL)
def test_options_with_arrays(kind: Make, close_later: Make) -> None:
    """Objects that raise when they are compared."""
    env = close_later(kind, [CountingEnv] * 2)
    for options in ({"start": 1, "goal": np.zeros(3)}, [{"start": start, "goal": np.zeros(3)} for start in (1, 1)]):
        env.set_options(options)
        assert env.reset()[:, 4].tolist() == [1, 1]


@pytest.mark.parametrize("kind", ALL)
def test_options_of_each_in_the_first_reset(kind: Make, close_later: Make) -> None:
    """No sub-environment is reset twice for it."""
    env = close_later(kind, [CountingEnv] * 3)
    env.set_options([{"start": 1}, {}, {"start": 3}])
    assert env.reset()[:, 4].tolist() == [1, 0, 3]
    assert [info["episodes"] for info in env.reset_infos] == [1, 1, 1]


@pytest.mark.parametrize("ours", OURS)
def test_infos_of_unlike_sub_environments(ours: Make, close_later: Make) -> None:
    """A key that some have, of types that differ."""
    env_fns = [functools.partial(InfoEnv, kind, index) for index, kind in enumerate(("mixed", "nested", "objects"))]
    env = close_later(ours, env_fns)
    env.reset()
    own = [env_fn().reset()[1] for env_fn in env_fns]
    same(env.reset_infos, own)
    *_, infos = env.step(np.zeros(3, int))
    assert infos[0]["large"] == 2**70
    assert infos[1]["outer"]["only_odd"] == 1
    assert infos[2]["set"] == {1}
    assert "large" not in infos[1]
