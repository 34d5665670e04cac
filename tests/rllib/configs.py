"""Small configurations of PPO over packed sub-environments."""

from __future__ import annotations

from typing import Any

from ray.tune.registry import register_env
from tests.rllib.spaces import Echo

from envfleet.rllib import FlattenObservations, PackedPPOConfig

N = 8


def config_of(env: Any = "envfleet/CartPole-v1", **env_config: Any) -> PackedPPOConfig:
    if callable(env):
        register_env("created", env)
        env = "created"
    config: PackedPPOConfig = as_configured(PackedPPOConfig(), env, **env_config)
    return config


def as_configured(config: Any, env: Any, **env_config: Any) -> Any:
    return (
        config.environment(env, env_config=env_config)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=N)
        .rl_module(model_config={"fcnet_hiddens": [16]})
        .training(train_batch_size=20 * N, minibatch_size=10 * N, num_epochs=2)
        .debugging(seed=1)
    )


def echo_config(actions: str, kind: type[Echo] = Echo) -> PackedPPOConfig:
    config = config_of(lambda settings: kind(actions)).packing(fleet_options={"backend": "serial"})
    return config.env_runners(env_to_module_connector=lambda env, spaces, device: FlattenObservations())
