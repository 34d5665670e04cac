"""Creation of fleets for RLlib, from names, ids and callables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from ray.rllib.env.env_context import EnvContext
from ray.tune.registry import register_env

import envfleet
from envfleet.errors import InvalidArgument
from envfleet.fleet.fleet import Fleet
from envfleet.rllib.internals import ENV_CREATOR, _global_registry

NUM_ENVS = "num_envs"  # RLlib adds it to an environment's settings to request a vector environment

_NEXT_STEP, _SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP

MakeFleet = Callable[..., Fleet]


def independent_seed(seed: int) -> int:
    """Return the seed for the first sub-environment of an EnvRunner; sub-environment *i* gets that plus *i*.

    RLlib seeds its EnvRunners with consecutive numbers, so that sub-environment 1 of one would play the episodes of
    sub-environment 0 of the next.

    Args:
        seed: RLlib's seed for the EnvRunner.
    """
    return int(np.random.SeedSequence(seed).generate_state(1)[0] >> 1)  # 31 bits, as many environments require


class SeededFleet(VectorWrapper):
    """A fleet with seeds that do not overlap with those of other EnvRunners; see `independent_seed`."""

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset the fleet; an integer seed is first turned into an independent one."""
        return self.env.reset(seed=None if seed is None else independent_seed(seed), options=options)


class FleetCreator:
    """Callable that makes fleets or single environments for RLlib; `register_fleet` registers one.

    With `gym_env_vectorize_mode="vector_entry_point"` RLlib requests all sub-environments of an EnvRunner at once and
    gets a fleet with next-step autoreset, as its own EnvRunners expect, in a wrapper that keeps the seeds of EnvRunners
    apart. In its other modes it requests single environments and gets Gymnasium's.

    Args:
        env: First argument of `make`; for `envfleet.make` a Gymnasium id, an `EnvSpec` or a callable.
        make: Function that returns a fleet, called as `make(env, num_envs, autoreset_mode=…, **options)`. For a service
            it is `functools.partial(envfleet.connect, url)`, for another library a function that adopts its vector
            environment.
        **options: Options of `make`; RLlib's `env_config` is added to them.

    Examples:
        >>> creator = FleetCreator("CartPole-v1", backend="serial")
        >>> vector_env = creator({"num_envs": 3})
        >>> vector_env.unwrapped
        <Fleet CartPole-v1: 3 sub-environments, serial, NEXT_STEP, not reset yet>
        >>> vector_env.close()
    """

    def __init__(
        self, env: str | EnvSpec | Callable[..., Any], make: MakeFleet = envfleet.make, **options: Any
    ) -> None:
        refuse_num_envs(options)
        self.env, self.make, self.options = env, make, options

    def __call__(self, context: Mapping[str, Any]) -> Any:
        """Make a fleet or an environment.

        Args:
            context: RLlib's `EnvContext`; it has `num_envs` if RLlib requests a vector environment.
        """
        settings = dict(context)
        if NUM_ENVS in settings:
            num_envs = settings.pop(NUM_ENVS)
            return SeededFleet(_checked(self.make_fleet(num_envs, _NEXT_STEP, **settings), num_envs, _NEXT_STEP))
        if self.make is not envfleet.make:
            raise InvalidArgument(
                f"RLlib requested a single {self.env!r}, which only envfleet.make can make: set "
                'config.env_runners(gym_env_vectorize_mode="vector_entry_point")'
            )
        if callable(self.env):
            return self.env(**settings)
        return gym.make(self.env, **settings)

    def make_fleet(self, num_envs: int, autoreset_mode: AutoresetMode, **options: Any) -> Fleet:
        """Make a fleet.

        Args:
            num_envs: Number of sub-environments.
            autoreset_mode: Autoreset mode.
            **options: Options that override those of this creator.
        """
        merged: dict[str, Any] = {**self.options, **options, "autoreset_mode": autoreset_mode}
        return self.make(self.env, num_envs, **merged)


def refuse_num_envs(options: Mapping[str, Any]) -> None:
    """Check that the options of a fleet leave its size to RLlib.

    Raises:
        InvalidArgument: `options` has `num_envs`.
    """
    if NUM_ENVS in options:
        raise InvalidArgument(
            f"num_envs={options[NUM_ENVS]} among a fleet's options: RLlib decides how many sub-environments each "
            "EnvRunner has; set config.env_runners(num_envs_per_env_runner=…)"
        )


def register_fleet(
    name: str, env: str | EnvSpec | Callable[..., Any], make: MakeFleet = envfleet.make, **options: Any
) -> FleetCreator:
    """Register a fleet with RLlib on every node, for `config.environment(name)`.

    Args:
        name: Name for RLlib.
        env: First argument of `make`.
        make: Function that returns a fleet, as for `FleetCreator`.
        **options: Options of `make`, such as `backend` and `workers`; each EnvRunner makes its own fleet.

    Returns:
        The registered creator.
    """
    creator = FleetCreator(env, make, **options)
    register_env(name, creator)
    return creator


def make_packed_fleet(env: Any, num_envs: int, context: EnvContext, options: Mapping[str, Any]) -> Fleet:
    """Make the fleet of a packed EnvRunner.

    It has same-step autoreset where that can be chosen, so that no row is a mere reset. Environments become a fleet; a
    vector environment is adopted as it is.

    Args:
        env: Argument of `config.environment`: a name of `register_fleet` or `ray.tune.register_env`, a Gymnasium id, or
            a callable that takes an `EnvContext`.
        num_envs: Number of sub-environments.
        context: Settings of the environment.
        options: Options of `envfleet.make`.

    Raises:
        InvalidArgument: `env` is not one of these, or is a vector environment of another size or without autoreset.
    """
    if isinstance(env, str):
        env = (
            _global_registry.get(ENV_CREATOR, env) if _global_registry.contains(ENV_CREATOR, env) else FleetCreator(env)
        )
    return _checked(_make_or_adopt(env, num_envs, context, options), num_envs, _NEXT_STEP, _SAME_STEP)


def _make_or_adopt(env: Any, num_envs: int, context: EnvContext, options: Mapping[str, Any]) -> Fleet:
    if isinstance(env, FleetCreator):
        return env.make_fleet(num_envs, _SAME_STEP, **{**options, **context})
    if not callable(env):
        raise InvalidArgument(
            f"config.environment({env!r}): expected a name of register_fleet or register_env, a Gymnasium id, or a "
            "callable that takes an EnvContext"
        )
    created = env(EnvContext({**context, NUM_ENVS: num_envs}, context.worker_index, num_workers=context.num_workers))
    if isinstance(created, VectorEnv):
        return created if isinstance(created, Fleet) else envfleet.adopt(created)
    created.close()
    return FleetCreator(partial(env, context)).make_fleet(num_envs, _SAME_STEP, **options)


def _checked(fleet: Fleet, num_envs: int, *modes: AutoresetMode) -> Fleet:
    fleet.engine.traits.refuse_vector_rewards("RLlib")
    if fleet.num_envs == num_envs and fleet.autoreset_mode in modes and fleet.device == "cpu":
        return fleet
    fleet.close()
    raise InvalidArgument(
        f"a vector environment of {fleet.num_envs} sub-environments with autoreset {fleet.autoreset_mode.name} and "
        f"arrays on {fleet.device!r}, expected {num_envs} sub-environments (the setting 'num_envs'), autoreset "
        f"{' or '.join(mode.name for mode in modes)}, and arrays on 'cpu': create it with these settings"
    )
