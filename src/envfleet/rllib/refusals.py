"""Checks of a `PackedPPOConfig` before anything starts; RLlib itself would fail minutes later, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import ray
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.env.env_context import EnvContext

import envfleet
from envfleet.errors import InvalidArgument
from envfleet.machine import whole_cores
from envfleet.rllib.fleets import FleetCreator
from envfleet.rllib.internals import (
    ENV_CREATOR,
    INPUT_ENV_SINGLE_SPACES,
    INPUT_ENV_SPACES,
    RLLIB_PIECES,
    _global_registry,
    force_list,
)

COUNT_SAMPLES = (
    "batch and minibatch sizes count samples, of all sub-environments together, where some programs count steps, each "
    "of num_envs samples"
)
VEC = "train with vec (envfleet.rllib.register_fleet and RLlib's own PPOConfig)"
_FLATTEN = (
    "config.env_runners(env_to_module_connector=lambda env, spaces, device: envfleet.rllib.FlattenObservations())"
)

Spaces = tuple[gym.Space[Any], gym.Space[Any]]
"""Spaces of one sub-environment's observations and actions."""


def refuse_settings(config: Any) -> None:
    """Check settings that packing does not support.

    Raises:
        InvalidArgument: There is one.
    """
    if config.observation_filter not in (None, "NoFilter"):
        raise InvalidArgument(
            f"observation_filter={config.observation_filter!r} belongs to RLlib's old API stack and has no effect: "
            "omit it, and normalize in the fleet, packing(fleet_options="
            '{"transforms": [envfleet.transforms.NormalizeObservation()]})'
        )
    requested = config.num_env_runners * config.num_cpus_per_env_runner
    available = ray.cluster_resources().get("CPU", 0) if ray.is_initialized() else whole_cores()
    if requested > available:
        raise InvalidArgument(
            f"num_env_runners={config.num_env_runners} with num_cpus_per_env_runner={config.num_cpus_per_env_runner:g} "
            f"ask for {requested:g} CPUs, but the cluster has {available:g}: use fewer EnvRunners with more "
            "num_envs_per_env_runner, or fewer CPUs for each"
        )


def refuse_batches(config: Any) -> None:
    """Check sizes of batches, before RLlib compares them without an explanation.

    Raises:
        InvalidArgument: A batch is smaller than a step of all sub-environments, or than a minibatch.
    """
    batch, minibatch = config.train_batch_size_per_learner, config.minibatch_size
    if minibatch is not None and minibatch > batch:
        raise InvalidArgument(
            f"minibatch_size={minibatch} is above train_batch_size={batch}: lower it; {COUNT_SAMPLES}"
        )
    num_runners, num_envs = max(config.num_env_runners, 1), config.num_envs_per_env_runner
    if config.total_train_batch_size < num_runners * num_envs:
        raise InvalidArgument(
            f"train_batch_size={config.total_train_batch_size} is less than one step of {num_envs} sub-environments in "
            f"each of {num_runners} EnvRunners: raise it, or use fewer sub-environments; {COUNT_SAMPLES}"
        )


def refuse_spaces(config: Any) -> None:
    """Check the environment's spaces and the connector pieces before the module.

    Raises:
        InvalidArgument: RLlib's default module or packing cannot take them.
    """
    env_spaces = find_spaces(config)
    pieces = _custom_pieces(config, env_spaces)
    for piece in pieces:
        if isinstance(piece, RLLIB_PIECES):
            raise InvalidArgument(
                f"{type(piece).__name__} of RLlib reads the episodes of single sub-environments, which packing does "
                f"not keep: {_ADVICE.get(type(piece).__name__, 'write a piece for the batch')}, or {VEC}"
            )
    if env_spaces is None or _has_own_module(config):
        return
    observation_space, action_space = env_spaces
    for piece in pieces:
        output_space = piece.recompute_output_observation_space(observation_space, action_space)
        if output_space is not None:  # RLlib's default, of a piece that changes no space
            observation_space = output_space
    if any(isinstance(space, spaces.MultiBinary) for space in _leaves(action_space)):
        raise InvalidArgument(
            f"the action space {action_space} has MultiBinary, which RLlib's default module does not support: wrap the "
            "environment so that it takes MultiDiscrete([2, …]), or set a module of yours by rl_module()"
        )
    if config.fleet_options.get("transforms"):  # which may change observations
        return
    if not isinstance(observation_space, spaces.Box) or len(observation_space.shape) not in (1, 3):
        raise InvalidArgument(
            f"RLlib's default module has no encoder for observations of {observation_space}, only for Box spaces with "
            f"1 or 3 dimensions: flatten them, {_FLATTEN}, or set a module of yours by rl_module()"
        )


_ADVICE = {
    "FlattenObservations": f"use the piece of envfleet, {_FLATTEN}; it has no agent_ids, since there is one agent",
    "MeanStdFilter": (
        'normalize in the fleet, packing(fleet_options={"transforms": [envfleet.transforms.NormalizeObservation()]})'
    ),
}


def _has_own_module(config: Any) -> bool:
    return getattr(config._rl_module_spec, "module_class", None) is not None  # noqa: SLF001 (RLlib has no other way)


def _leaves(space: gym.Space[Any]) -> list[gym.Space[Any]]:
    if isinstance(space, spaces.Dict):
        return [leaf for part in space.values() for leaf in _leaves(part)]
    if isinstance(space, spaces.Tuple):
        return [leaf for part in space for leaf in _leaves(part)]
    return [space]


def _custom_pieces(config: Any, env_spaces: Spaces | None) -> list[ConnectorV2]:
    """Return the user's pieces before the module; none if they cannot be made without an environment."""
    make = config._env_to_module_connector  # noqa: SLF001
    spaces_by_key = None if env_spaces is None else {INPUT_ENV_SPACES: env_spaces, INPUT_ENV_SINGLE_SPACES: env_spaces}
    if make is not None:
        with contextlib.suppress(Exception):  # EnvRunners call it again with an environment, and report its errors
            return list(force_list(make(None, spaces_by_key, None)))
    return []


def find_spaces(config: Any) -> Spaces | None:
    """Return the spaces of one sub-environment; `None` if they are known only to EnvRunners.

    Raises:
        InvalidArgument: The environment has several players.
    """
    if config.observation_space is not None and config.action_space is not None:
        return config.observation_space, config.action_space
    env: Any = None
    with contextlib.suppress(Exception):  # an environment that only EnvRunners can make; they report its errors
        env = _make_one(config.env, config.env_config)
    if env is None:
        return None
    try:
        _refuse_players(env)
        if isinstance(env, VectorEnv):
            return env.single_observation_space, env.single_action_space
        return env.observation_space, env.action_space
    finally:
        env.close()


def _make_one(env: Any, settings: Mapping[str, Any]) -> Any:
    creator = env
    if isinstance(env, str):
        is_known = _global_registry.contains(ENV_CREATOR, env)
        creator = _global_registry.get(ENV_CREATOR, env) if is_known else FleetCreator(env)
    if isinstance(creator, FleetCreator) and creator.make is not envfleet.make:
        return None
    return creator(EnvContext(settings, 0)) if callable(creator) else None


def _refuse_players(env: Any) -> None:
    inner = getattr(env, "unwrapped", env)
    names = [name for name in ("possible_agents", "agent_names", "player_two") if hasattr(inner, name)]
    if names:
        raise InvalidArgument(
            f"{type(inner).__name__} is a game of several players, and packing trains one agent: use an environment "
            "in which the other players are part of the environment (for hockey, one with an opponent), or envfleet's "
            "own training, which plays both sides"
        )
