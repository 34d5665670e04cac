"""From what RLlib is told to run to the fleet that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from ray.rllib.env.env_context import EnvContext
from ray.tune.registry import ENV_CREATOR, _global_registry, register_env

import envfleet
from envfleet.errors import InvalidArgument

NUM_ENVS = "num_envs"  # what RLlib puts among an environment's settings to ask for a vector environment


class FleetCreator:
    """Makes fleets, or single environments, as RLlib asks for them; `register_fleet` registers one.

    With `gym_env_vectorize_mode="vector_entry_point"` RLlib asks for all sub-environments of an EnvRunner at once and
    gets a fleet of next-step autoreset, which is what its own EnvRunners expect. In its other modes it asks for one
    environment at a time and gets Gymnasium's.

    Args:
        env: What `envfleet.make` takes: a Gymnasium id, an `EnvSpec` or a callable.
        **options: Of `envfleet.make`; RLlib's `env_config` is added to them.

    Examples:
        >>> creator = FleetCreator("CartPole-v1", backend="serial")
        >>> with creator({"num_envs": 3}) as fleet:
        ...     fleet.num_envs
        3
    """

    def __init__(self, env: str | EnvSpec | Callable[..., Any], **options: Any) -> None:
        if NUM_ENVS in options:
            raise InvalidArgument(
                f"num_envs={options[NUM_ENVS]} for a FleetCreator: RLlib decides how many sub-environments each "
                "EnvRunner has; set config.env_runners(num_envs_per_env_runner=…)"
            )
        self.env, self.options = env, options

    def __call__(self, context: Mapping[str, Any]) -> Any:
        """Make what RLlib asks for.

        Args:
            context: RLlib's `EnvContext`; has `num_envs` where a vector environment is wanted.
        """
        settings = dict(context)
        if NUM_ENVS in settings:
            return self.make_fleet(settings.pop(NUM_ENVS), AutoresetMode.NEXT_STEP, **settings)
        if callable(self.env):
            return self.env(**settings)
        return gym.make(self.env, **settings)

    def make_fleet(self, num_envs: int, autoreset_mode: AutoresetMode, **options: Any) -> VectorEnv[Any, Any, Any]:
        """Make a fleet.

        Args:
            num_envs: How many sub-environments.
            autoreset_mode: When they are reset.
            **options: Added to those of this creator, which they override.
        """
        merged: dict[str, Any] = {**self.options, **options, "autoreset_mode": autoreset_mode}
        return envfleet.make(self.env, num_envs, **merged)

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"{type(self).__name__}({self.env!r}{options})"


def register_fleet(name: str, env: str | EnvSpec | Callable[..., Any], **options: Any) -> FleetCreator:
    """Give a fleet a name that RLlib knows on every node: `config.environment(name)`.

    Args:
        name: The name.
        env: What `envfleet.make` takes.
        **options: Of `envfleet.make`, such as `backend` and `workers`; each EnvRunner has a fleet of its own.

    Returns:
        What was registered.
    """
    creator = FleetCreator(env, **options)
    register_env(name, creator)
    return creator


def make_packed_fleet(env: Any, num_envs: int, context: EnvContext, options: Mapping[str, Any]) -> Any:
    """Make the vector environment of a packed EnvRunner.

    Fleets reset on the same step, so that no row is a reset. Environments that are not fleets become one; a vector
    environment is taken as it is.

    Args:
        env: What `config.environment` was given: a name of `register_fleet` or `ray.tune.register_env`, a Gymnasium
            id, or a callable that takes an `EnvContext`.
        num_envs: How many sub-environments.
        context: Settings of the environment.
        options: Of `envfleet.make`.

    Raises:
        InvalidArgument: There is no environment, or it is a vector environment of another size or one that resets
            nothing by itself.
    """
    if isinstance(env, str) and _global_registry.contains(ENV_CREATOR, env):
        env = _global_registry.get(ENV_CREATOR, env)
    mode = AutoresetMode.SAME_STEP
    settings = {"copy": False, **options}
    if isinstance(env, FleetCreator):
        return env.make_fleet(num_envs, mode, **{**settings, **context})
    if isinstance(env, str):
        return FleetCreator(env, **settings).make_fleet(num_envs, mode, **context)
    if not callable(env):
        raise InvalidArgument(
            f"config.environment({env!r}): expected a name of register_fleet or register_env, a Gymnasium id, or a "
            "callable that takes an EnvContext"
        )
    made = env(EnvContext({**context, NUM_ENVS: num_envs}, context.worker_index, num_workers=context.num_workers))
    if isinstance(made, VectorEnv):
        return _checked(made, num_envs)
    made.close()
    return FleetCreator(partial(env, context), **settings).make_fleet(num_envs, mode)


def _checked(made: VectorEnv[Any, Any, Any], num_envs: int) -> VectorEnv[Any, Any, Any]:
    mode = made.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    if made.num_envs == num_envs and mode is not AutoresetMode.DISABLED:
        return made
    made.close()
    raise InvalidArgument(
        f"the environment creator returned a vector environment of {made.num_envs} sub-environments with autoreset "
        f"{mode}, expected {num_envs} (its setting 'num_envs') that reset by themselves: make it so, or return a "
        "single environment"
    )
