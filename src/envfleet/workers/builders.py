"""Recipes for sub-environments, as values that travel to the worker that builds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

from envfleet.errors import InvalidArgument


@dataclasses.dataclass(frozen=True)
class EnvBuilder:
    """Builds one sub-environment.

    Attributes:
        function: The user's callable.
        seed: Passed as the first argument if the callable takes one, else `None`.
        shared_names: Names of the fleet's shared data that the callable takes as keywords.
    """

    function: Callable[..., gym.Env[Any, Any]]
    seed: int | None = None
    shared_names: tuple[str, ...] = ()

    def build(self, shared: Mapping[str, Any], seed: int | None = None) -> gym.Env[Any, Any]:
        """Build the sub-environment.

        Args:
            shared: The fleet's shared data by name.
            seed: Replaces the builder's own seed, for a sub-environment that is built again.

        Raises:
            InvalidArgument: The callable returned something else than a Gymnasium environment, or one without spaces.
        """
        args = () if self.seed is None else (self.seed if seed is None else seed,)
        env: Any = self.function(*args, **{name: shared[name] for name in self.shared_names})
        if isinstance(env, gym.Env):
            _check_spaces(env)
            return env
        if isinstance(env, gym.vector.VectorEnv):
            hint = "a vector environment cannot be a sub-environment: return a single one"
        elif env is None:
            hint = "the callable returned nothing: end it with `return env`"
        elif isinstance(env, type):
            hint = f"the callable returned a class: return an instance, {env.__name__}(...)"
        elif hasattr(env, "step") and hasattr(env, "reset"):
            hint = "it looks like an environment of another library: wrap it in a gymnasium.Env first"
        else:
            hint = "return a gymnasium.Env"
        raise InvalidArgument(f"the callable returned {type(env).__name__}, expected a gymnasium.Env; {hint}")


def _check_spaces(env: gym.Env[Any, Any]) -> None:
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gym.Space):
            what = f"no {name}" if space is None else f"the {name} {space!r}, expected a gymnasium.Space"
            raise InvalidArgument(f"{type(env.unwrapped).__name__} has {what}: set it in __init__")
