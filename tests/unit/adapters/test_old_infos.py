"""Scripts that were written for Gymnasium 0.29's infos run on fleets and on adopted vector environments."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envfleet
from envfleet.adapters.old_infos import OldInfos
from envfleet.errors import InvalidArgument
from envfleet.testing import CountingEnv


def make_cart(seed: int) -> gym.Env[Any, Any]:
    """Make an environment as CleanRL's scripts do."""
    env = gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1", max_episode_steps=20))
    env.action_space.seed(seed)
    return env


def make_vector_env(kind: Any) -> Any:
    makers = [functools.partial(make_cart, seed) for seed in range(3)]
    if kind == "SyncVectorEnv":
        return SyncVectorEnv(makers)
    if kind == "SyncVectorEnv, same step":
        return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    return envfleet.make(makers, backend=kind, autoreset_mode="SAME_STEP")


def play(envs: Any, num_steps: int) -> tuple[list[tuple[float, int]], list[Any]]:
    """Read infos word for word as CleanRL's PPO (episodes) and DQN (last observations) do."""
    logged, replayed = list[tuple[float, int]](), list[Any]()
    obs, _ = envs.reset(seed=7)
    rng = np.random.default_rng(0)
    for _ in range(num_steps):
        actions = rng.integers(2, size=envs.num_envs)
        next_obs, _rewards, terminations, truncations, infos = envs.step(actions)
        if "final_info" in infos:
            for info in infos["final_info"]:
                if info and "episode" in info:
                    logged.append((float(info["episode"]["r"]), int(info["episode"]["l"])))
        real_next_obs = next_obs.copy()
        for idx, ended in enumerate(terminations | truncations):
            if ended:
                real_next_obs[idx] = infos["final_observation"][idx]
        replayed.append((obs, real_next_obs))
        obs = next_obs
    return logged, replayed


@pytest.mark.parametrize("kind", ["serial", "process", "SyncVectorEnv", "SyncVectorEnv, same step"])
def test_scripts_read_episodes_and_last_observations(kind: str) -> None:
    """A script reads the same values as a loop that steps the environments one by one."""
    envs = OldInfos(make_vector_env(kind))
    logged, replayed = play(envs, 60)
    envs.close()
    alone = [make_cart(seed) for seed in range(3)]
    obs = [env.reset(seed=7 + row)[0] for row, env in enumerate(alone)]
    rng = np.random.default_rng(0)
    expected = list[tuple[float, int]]()
    for before, after in replayed:
        actions = rng.integers(2, size=3)
        for row, env in enumerate(alone):
            np.testing.assert_array_equal(before[row], obs[row])
            obs[row], _, terminated, truncated, info = env.step(actions[row])
            np.testing.assert_array_equal(after[row], obs[row])
            if terminated or truncated:
                expected.append((float(info["episode"]["r"]), int(info["episode"]["l"])))
                obs[row] = env.reset()[0]
    assert logged == expected
    assert len(logged) > 3


def test_ended_rows_have_values_and_others_none() -> None:
    envs = OldInfos(envfleet.make([functools.partial(CountingEnv, n) for n in (2, 5)], autoreset_mode="SAME_STEP"))
    envs.reset(seed=0)
    assert "final_info" not in envs.step(envs.action_space.sample())[4]
    infos = envs.step(envs.action_space.sample())[4]
    envs.close()
    assert infos["final_info"].dtype == infos["final_observation"].dtype == object
    assert isinstance(infos["final_info"][0], dict)
    assert infos["final_info"][1] is infos["final_observation"][1] is None
    assert infos["_final_info"].tolist() == infos["_final_observation"].tolist() == [True, False]
    assert not {"final_obs", "_final_obs"} & infos.keys()


@pytest.mark.filterwarnings("ignore:.*precision lowered")
@pytest.mark.parametrize("is_adopted", [False, True])
def test_envpool_reports_last_observations(is_adopted: bool) -> None:
    import envpool

    options = {"num_envs": 3, "num_threads": 1, "seed": 0, "max_episode_steps": 8}
    pool: Any = envpool.make("CartPole-v1", env_type="gymnasium", **options)
    envs = OldInfos(envfleet.adopt(pool, autoreset_mode="SAME_STEP") if is_adopted else pool)
    envs.reset()
    observations, _, terminations, truncations, infos = [envs.step(np.array([0, 1, 0])) for _ in range(8)][-1]
    envs.close()
    assert (terminations | truncations).all()
    for row in range(3):
        assert isinstance(infos["final_info"][row], dict)
        assert np.abs(infos["final_observation"][row]).max() > np.abs(observations[row]).max()


def test_recorded_episodes_are_in_the_final_infos() -> None:
    options: dict[str, Any] = {"autoreset_mode": "SAME_STEP", "record_episodes": True, "backend": "serial"}
    envs = OldInfos(envfleet.make(functools.partial(CountingEnv, 3), 2, **options))
    envs.reset(seed=0)
    infos = [envs.step(envs.action_space.sample())[4] for _ in range(3)][-1]
    envs.close()
    assert [info["episode"]["l"] for info in infos["final_info"]] == [3, 3]
    assert "episode" not in infos


def test_other_fleets_are_refused() -> None:
    fleet = envfleet.make("CartPole-v1", 2, backend="serial")
    with fleet, pytest.raises(InvalidArgument, match='make it with autoreset_mode="SAME_STEP"'):
        OldInfos(fleet)
    with envfleet.make(functools.partial(CountingEnv, 1), 2, autoreset_mode="SAME_STEP", final_infos=False) as fleet:
        envs = OldInfos(fleet)
        envs.reset(seed=0)
        with pytest.raises(InvalidArgument, match="without final_infos=False"):
            envs.step(envs.action_space.sample())
