"""The vector environment of RayEnvWrapper, as its README uses it."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from RayEnvWrapper import CustomRayRemoteVectorEnv, WrapperRayVecEnv
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from tests.ray.conftest import no_actor_stays
from tests.unit.adapters.old_envs import OldCartPole, OldWrapper

from envfleet.errors import InvalidArgument, NothingPending

pytestmark = pytest.mark.timeout(100)

LITTLE = {"num_cpus": 0.01}


README = [
    """
import gym

def make_and_seed(seed: int) -> gym.Env:
    env = gym.make('CartPole-v0')
    env = gym.wrappers.RecordEpisodeStatistics(env) # you can put extra wrapper to your original environment
    env.seed(seed)
    return env
""",
    """
from RayEnvWrapper import WrapperRayVecEnv

number_of_workers = 4 # Usually, this is set to the number of CPUs in your machine
envs_per_worker = 2

vec_env = WrapperRayVecEnv(make_and_seed, number_of_workers, envs_per_worker)
""",
    "vec_env.reset()",
    "vec_env.step([vec_env.action_space.sample() for _ in range(number_of_workers * envs_per_worker)])",
]


class BareCartPole(OldWrapper):
    """`gym.make("CartPole-v0")`: observations are arrays."""

    def __init__(self, name: str) -> None:
        super().__init__(OldCartPole(0))
        self.observation_space = self.env.observation_space.spaces["state"]

    def reset(self) -> Any:
        return self.env.reset()["state"]

    def step(self, action: Any) -> Any:
        observation, *others = self.env.step(action)
        return observation["state"], *others


@pytest.fixture
def gym_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stand-in for the old `gym`, which cannot be installed any more."""
    gym_module: Any = ModuleType("gym")
    gym_module.Env, gym_module.make, gym_module.wrappers = OldWrapper, BareCartPole, ModuleType("gym.wrappers")
    gym_module.wrappers.RecordEpisodeStatistics = OldWrapper
    monkeypatch.setitem(sys.modules, "gym", gym_module)
    return gym_module


def test_the_readme_runs_as_it_is_written(gym_module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster with one CPU."""
    names: dict[str, Any] = {}
    exec(README[0], names)
    monkeypatch.delitem(sys.modules, "gym")  # so that it goes to the workers by value
    exec(README[1], names)
    observations = eval(README[2], names)
    alone = [BareCartPole("CartPole-v0") for _ in range(8)]
    for index, env in enumerate(alone):
        env.seed(index)
    np.testing.assert_array_equal(observations, [env.reset() for env in alone])
    observations, rewards, dones, infos = eval(README[3], names)
    assert (observations.shape, observations.dtype) == ((8, 4), np.float32)
    assert (rewards.tolist(), rewards.dtype, dones.tolist(), dones.dtype) == ([1.0] * 8, np.float32, [False] * 8, bool)
    assert [type(info) for info in infos] == [dict] * 8
    names["vec_env"].close()


def test_the_remote_vector_env_polls() -> None:
    envs: Any = CustomRayRemoteVectorEnv(make_env=make_and_seed, num_workers=2, per_worker_env=1)
    ones = [make_and_seed(seed) for seed in range(2)]
    observations, rewards, dones, infos = envs.poll()
    np.testing.assert_array_equal(observations, [env.reset()[0] for env in ones])
    assert (rewards.tolist(), dones.tolist(), len(infos)) == ([0.0, 0.0], [False, False], 2)
    envs.send_actions([1, 0])
    observations, rewards, *_ = envs.poll()
    np.testing.assert_array_equal(observations, [env.step(action)[0] for env, action in zip(ones, [1, 0], strict=True)])
    assert rewards.tolist() == [1.0, 1.0]
    with pytest.raises(NothingPending):
        envs.poll()
    envs.stop()
    assert no_actor_stays()


def make_and_seed(seed: int) -> gym.Env[Any, Any]:
    env = gym.make("CartPole-v1")
    env = gym.wrappers.RecordEpisodeStatistics(env)
    env.reset(seed=seed)
    return env


def test_episodes_and_training() -> None:
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
