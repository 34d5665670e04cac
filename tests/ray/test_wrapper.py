"""The vector environment of RayEnvWrapper, as its README uses it."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import RayEnvWrapper.CustomRayRemoteEnv
import RayEnvWrapper.CustomWrapperRayVecEnv
from RayEnvWrapper import CustomRayRemoteVectorEnv, WrapperRayVecEnv
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from tests.ray.conftest import no_actor_stays
from tests.unit.adapters.old_envs import OldCartPole, make_and_seed

from envfleet.errors import InvalidArgument, NothingPending

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


@pytest.mark.filterwarnings("ignore:.*WARN")  # of gym, about its own names
def test_the_readme_runs_as_it_is_written() -> None:
    """With the old gym, on a cluster that has one CPU."""
    names: dict[str, Any] = {}
    for block in README[:2]:
        exec(block, names)
    observations = eval(README[2], names)
    alone = [names["make_and_seed"](index) for index in range(8)]
    np.testing.assert_array_equal(observations, [env.reset() for env in alone])
    observations, rewards, dones, infos = eval(README[3], names)
    assert (observations.shape, observations.dtype) == ((8, 4), np.float32)
    assert (rewards.tolist(), rewards.dtype, dones.tolist(), dones.dtype) == ([1.0] * 8, np.float32, [False] * 8, bool)
    assert [type(info) for info in infos] == [dict] * 8
    worker = names["vec_env"].fleet.stats().workers[0].pid
    libraries = {Path(line.split()[-1]).name for line in Path(f"/proc/{worker}/maps").read_text().splitlines()}
    assert not [name for name in libraries if "torch" in name], "a worker imported Stable-Baselines3"
    names["vec_env"].close()
    assert no_actor_stays()


def test_polling_episodes_and_training() -> None:
    """By `CustomRayRemoteVectorEnv`, which has all of `WrapperRayVecEnv`, too."""
    vec_env: Any = CustomRayRemoteVectorEnv(
        make_and_seed, 2, env_per_worker=2, multiagent=False, seed=5, ray_options=LITTLE
    )
    ones = [make_and_seed(5 + index) for index in range(4)]
    observations, rewards, dones, infos = vec_env.poll()
    np.testing.assert_array_equal(observations, [env.reset()[0] for env in ones])
    assert (rewards.tolist(), dones.tolist(), len(infos)) == ([0.0] * 4, [False] * 4, 4)
    vec_env.send_actions([1, 0, 0, 1])
    observations, rewards, *_ = vec_env.poll()
    expected = [env.step(action)[0] for env, action in zip(ones, [1, 0, 0, 1], strict=True)]
    np.testing.assert_array_equal(observations, expected)
    assert rewards.tolist() == [1.0] * 4
    with pytest.raises(NothingPending):
        vec_env.poll()
    vec_env.send_actions([1, 0, 0, 1])
    assert vec_env.try_reset(1) == "async_reset_return"  # as RLlib names it
    observations, rewards, *_ = vec_env.poll()
    expected = [env.step(action)[0] for env, action in zip(ones[:2], [1, 0], strict=True)]
    np.testing.assert_array_equal(observations, [*expected, *(env.reset()[0] for env in ones[2:])])
    assert rewards.tolist() == [1.0, 1.0, 0.0, 0.0]
    with pytest.raises(InvalidArgument, match="env_id=2"):
        vec_env.try_reset(2)
    observations = vec_env.reset()
    assert isinstance(observations, np.ndarray)
    np.testing.assert_array_equal(observations, [env.reset()[0] for env in ones])
    assert step_beside(vec_env, ones, 40) > 0
    model = PPO("MlpPolicy", vec_env, n_steps=32, batch_size=64, n_epochs=1, device="cpu")
    model.learn(256)
    assert model.num_timesteps == 256
    vec_env.stop()
    assert no_actor_stays()


def test_the_originals_modules_and_arguments() -> None:
    """Positional as there; its own environments of several agents never worked."""
    assert RayEnvWrapper.CustomWrapperRayVecEnv.WrapperRayVecEnv is WrapperRayVecEnv
    assert RayEnvWrapper.CustomRayRemoteEnv.CustomRayRemoteVectorEnv is CustomRayRemoteVectorEnv
    assert list(inspect.signature(WrapperRayVecEnv).parameters)[:3] == ["make_env", "num_workers", "per_worker_env"]
    expected = ["make_env", "num_workers", "env_per_worker", "multiagent"]
    assert list(inspect.signature(CustomRayRemoteVectorEnv).parameters)[:4] == expected
    with pytest.raises(InvalidArgument, match=r"^multiagent=True is not supported"):
        CustomRayRemoteVectorEnv(make_and_seed, 1, 1, True)


def step_beside(vec_env: Any, ones: list[Any], count: int) -> int:
    """Compare with single environments, which are reset where an episode ends; returns how many ended."""
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(count):
        actions = [int(action) for action in rng.integers(2, size=len(ones))]
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
    return ended


def test_what_the_original_left_empty() -> None:
    """Environments of the old gym, with Dict observations."""
    vec_env: Any = WrapperRayVecEnv(OldCartPole, 1, 4, seed=7, ray_options=LITTLE)
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
