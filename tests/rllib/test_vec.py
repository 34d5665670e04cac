"""Fleets as RLlib's vector environment."""

from __future__ import annotations

import contextlib
from typing import Any

import gymnasium as gym
import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from tests.fleets import adopted

import envfleet
from envfleet.errors import InvalidArgument
from envfleet.rllib import FleetCreator, register_fleet
from envfleet.testing import mismatches

N = 6


def vec_config(env: str) -> PPOConfig:
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=N, gym_env_vectorize_mode="vector_entry_point")
        .rl_module(model_config={"fcnet_hiddens": [16]})
        .training(train_batch_size=40 * N, minibatch_size=20 * N, num_epochs=1)
    )


def sample(config: PPOConfig) -> Any:
    """Sample with an EnvRunner; return its episodes, metrics and environment."""
    runner = SingleAgentEnvRunner(config=config, worker_index=0, num_workers=0)
    episodes, metrics = runner.sample(), runner.get_metrics()
    runner.stop()
    return (
        episodes,
        {name: stats.peek() for name, stats in metrics.items() if name.startswith("episode_")},
        runner.env.unwrapped,
    )


def episodes_of(make_fleet: Any) -> list[Any]:
    """Sample on fleets of a kind; returns observations, actions and rewards of every episode."""
    register_fleet("carts", "CartPole-v1", lambda env, num_envs, **options: make_fleet(num_envs=num_envs, **options))
    episodes, metrics, vector_env = sample(vec_config("carts").debugging(seed=3))
    assert isinstance(vector_env, envfleet.Fleet)
    assert 40 * N <= sum(map(len, episodes)) < 41 * N
    assert metrics["episode_return_mean"] == metrics["episode_len_mean"] > 8
    return [[column() for column in (one.get_observations, one.get_actions, one.get_rewards)] for one in episodes]


def test_a_fleet_is_rllibs_vector_environment(make_fleet: Any) -> None:
    """It samples the same episodes, to the last bit, whichever fleet it is."""
    expected, actual = episodes_of(adopted), episodes_of(make_fleet)
    assert not mismatches(expected, actual)


def test_a_kernel_needs_no_registration() -> None:
    episodes, _, vector_env = sample(vec_config("envfleet/CartPole-v1"))
    assert vector_env.plan.backend == "kernel"
    assert any(episode.is_done for episode in episodes)


def test_settings_of_rllib_reach_the_environment() -> None:
    register_fleet("short", "CartPole-v1", backend="serial", max_episode_steps=100)
    config = vec_config("short").environment("short", env_config={"max_episode_steps": 5})
    assert sample(config)[1]["episode_len_max"] == 5


def test_rllibs_other_modes_get_single_environments() -> None:
    creator = register_fleet("carts", "CartPole-v1", backend="serial")
    with creator({}) as env:
        assert isinstance(env, gym.Env)
    with FleetCreator(lambda: gym.make("CartPole-v1"))({}) as env:
        assert isinstance(env, gym.Env)
    config = vec_config("carts").env_runners(gym_env_vectorize_mode=gym.VectorizeMode.SYNC)
    assert isinstance(sample(config)[2], gym.vector.SyncVectorEnv)


def test_what_a_function_of_the_users_own_makes_is_checked() -> None:
    def make_wrong(env: str, num_envs: int, autoreset_mode: Any) -> Any:
        return envfleet.make(env, num_envs, backend="serial", autoreset_mode="SAME_STEP")

    creator = FleetCreator("CartPole-v1", make_wrong)
    with pytest.raises(InvalidArgument, match=r"autoreset SAME_STEP .* expected 3 .* autoreset NEXT_STEP"):
        creator({"num_envs": 3})
    with pytest.raises(InvalidArgument, match="vector_entry_point"):
        creator({})


def test_the_number_of_sub_environments_is_rllibs() -> None:
    with pytest.raises(InvalidArgument, match="num_envs_per_env_runner"):
        register_fleet("carts", "CartPole-v1", num_envs=3)
    with contextlib.closing(FleetCreator("CartPole-v1", backend="serial")({"num_envs": 3})) as vector_env:
        assert isinstance(vector_env.unwrapped, envfleet.Fleet)
        assert vector_env.num_envs == 3


def test_env_runners_play_different_episodes() -> None:
    """RLlib's seeds of EnvRunners are consecutive, and so are those of sub-environments."""
    register_fleet("carts", "CartPole-v1", backend="serial")
    config, starts = vec_config("carts").debugging(seed=3).env_runners(num_env_runners=3), set()
    for worker_index in (1, 2, 3):
        runner = SingleAgentEnvRunner(config=config, worker_index=worker_index, num_workers=3)
        starts |= {episode.get_observations(0).tobytes() for episode in runner.sample(num_timesteps=N)}
        runner.stop()
    assert len(starts) == 3 * N
