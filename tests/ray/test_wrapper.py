"""The vector environment of RayEnvWrapper, as its README uses it."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from RayEnvWrapper import WrapperRayVecEnv
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from tests.ray.conftest import no_actor_stays
from tests.unit.adapters.old_envs import OldCartPole

from envfleet.errors import InvalidArgument

pytestmark = pytest.mark.timeout(100)

LITTLE = {"num_cpus": 0.01}


def make_and_seed(seed: int) -> gym.Env[Any, Any]:
    env = gym.make("CartPole-v1")
    env = gym.wrappers.RecordEpisodeStatistics(env)
    env.reset(seed=seed)
    return env


def test_as_its_readme_has_it() -> None:
    number_of_workers, envs_per_worker = 2, 2
    vec_env: Any = WrapperRayVecEnv(make_and_seed, number_of_workers, envs_per_worker, seed=5, ray_options=LITTLE)
    ones = [make_and_seed(5 + index) for index in range(4)]
    observations = vec_env.reset()
    assert isinstance(observations, np.ndarray)
    np.testing.assert_array_equal(observations, [env.reset()[0] for env in ones])
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(40):
        actions = [int(action) for action in rng.integers(2, size=4)]
        observations, rewards, dones, infos = vec_env.step(actions)
        assert (rewards.dtype, dones.dtype, type(infos)) == (np.float32, np.bool_, list)
        for index, env in enumerate(ones):
            expected, reward, terminated, truncated, _ = env.step(actions[index])
            assert (rewards[index], dones[index]) == (reward, terminated or truncated)
            if dones[index]:
                ended += 1
                np.testing.assert_array_equal(infos[index]["terminal_observation"], expected)
                expected = env.reset()[0]
            np.testing.assert_array_equal(np.asarray(observations)[index], expected)
    assert ended > 0
    model = PPO("MlpPolicy", vec_env, n_steps=32, batch_size=64, n_epochs=1, device="cpu")
    model.learn(256)
    assert model.num_timesteps == 256
    vec_env.close()
    assert no_actor_stays()


def test_what_the_original_left_empty() -> None:
    """Environments of the old gym, with Dict observations."""
    vec_env: Any = WrapperRayVecEnv(OldCartPole, 2, 2, seed=7, ray_options=LITTLE)
    observations = vec_env.reset()
    assert isinstance(observations, dict)
    assert observations["state"].shape == (4, 4)
    assert vec_env.get_attr("first_seed") == [7, 8, 9, 10]
    vec_env.set_attr("color", "red", indices=[1, 3])
    assert vec_env.get_attr("color", indices=[3]) == ["red"]
    assert vec_env.env_method("seed", 3, indices=0) == [[3]]
    assert vec_env.env_is_wrapped(Monitor, indices=[0, 1]) == [True, True]
    assert vec_env.env_is_wrapped(gym.wrappers.TimeLimit) == [False] * 4
    assert vec_env.seed(20) == [20, 21, 22, 23]
    again = vec_env.reset()
    alone = OldCartPole(21)
    np.testing.assert_array_equal(np.asarray(again["state"])[1], alone.reset()["state"])
    dones = [vec_env.step([0] * 4)[2] for _ in range(12)]
    assert np.any(dones)
    vec_env.close()
    with pytest.raises(InvalidArgument, match="1 or more"):
        WrapperRayVecEnv(functools.partial(OldCartPole), 0, 2)
