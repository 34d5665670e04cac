"""Adapter of environments of the old `gym`: `step` of four values, `reset` without infos, `seed` as a method.

`gym` itself is not imported and need not be installed: only the interface of an environment matters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envfleet.errors import InvalidArgument


class OldGymEnv(gymnasium.Env[Any, Any]):
    """Environment with the interface of `gym` up to 0.26, as a `gymnasium.Env`.

    `step` may return five values, or four, of which `done` becomes `truncated` if the info has `TimeLimit.truncated`.
    `reset` may return an observation with or without an info. Seeds are passed to `reset(seed=…)` if it takes one, else
    to `seed()`. Attributes are looked up on the environment and on its own wrappers.

    Args:
        old: Environment of the old `gym`.

    Attributes:
        old: Environment of the old `gym`.

    Raises:
        InvalidArgument: `step`, `reset` or a space is missing, or Gymnasium has no space of that name.

    Examples:
        >>> class Walk:
        ...     observation_space, action_space = spaces.Discrete(10), spaces.Discrete(2)
        ...     def reset(self):
        ...         self.place = 0
        ...         return self.place
        ...     def step(self, action):
        ...         self.place += int(action)
        ...         return self.place, 1.0, self.place == 3, {}
        >>> env = OldGymEnv(Walk())
        >>> env.reset(seed=1)
        (0, {})
        >>> env.step(1)
        (1, 1.0, False, False, {})
    """

    def __init__(self, old: Any) -> None:
        missing = [name for name in ("step", "reset", "observation_space", "action_space") if not hasattr(old, name)]
        if missing:
            raise InvalidArgument(f"{type(old).__name__} has no {missing}, expected an environment of gym: return one")
        self.old = old
        self.observation_space = modern_space(old.observation_space)
        self.action_space = modern_space(old.action_space)
        self.metadata = dict(getattr(old, "metadata", None) or {})
        self.render_mode = getattr(old, "render_mode", None)
        self._takes_seed = "seed" in _parameters(old.reset)
        self._takes_options = "options" in _parameters(old.reset)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment.

        Args:
            seed: Seed of its random generators.
            options: Ignored if its `reset` takes none.
        """
        super().reset(seed=seed)
        arguments: dict[str, Any] = {}
        if seed is not None and self._takes_seed:
            arguments["seed"] = seed
        elif seed is not None and hasattr(self.old, "seed"):
            self.old.seed(seed)
        if options is not None and self._takes_options:
            arguments["options"] = options
        result = self.old.reset(**arguments)
        if _is_with_info(result, self.observation_space):
            observation, info = result
            return observation, info
        return result, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment."""
        result = self.old.step(action)
        if len(result) == 5:
            observation, reward, terminated, truncated, info = result
            return observation, reward, terminated, truncated, info
        observation, reward, done, info = result
        is_truncated = bool(done) and bool(info.get("TimeLimit.truncated", False))
        return observation, reward, bool(done) and not is_truncated, is_truncated, info

    def render(self) -> Any:
        """Render the environment, with the mode `"rgb_array"` if `render` takes a mode."""
        if self.render_mode is not None or "mode" not in _parameters(self.old.render):
            return self.old.render()
        return self.old.render(mode="rgb_array")

    def close(self) -> None:
        """Close the environment."""
        if hasattr(self.old, "close"):
            self.old.close()

    def has_wrapper_attr(self, name: str) -> bool:
        """Return whether the environment, one of its wrappers or this adapter has an attribute."""
        return hasattr(self._layer_with(name), name) or hasattr(self, name)

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of the environment, one of its wrappers or this adapter."""
        layer = self._layer_with(name)
        return getattr(layer if hasattr(layer, name) else self, name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute on the outermost layer that has it; a new one on the environment if `force`."""
        layer = self._layer_with(name)
        if force or hasattr(layer, name):
            setattr(layer, name, value)
        return hasattr(layer, name)

    def _layer_with(self, name: str) -> Any:
        """Return the outermost layer that has an attribute itself, else the environment.

        `getattr` on a wrapper is not enough: old wrappers do not forward names that begin with an underscore.
        """
        layer = self.old
        while not hasattr(type(layer), name):
            own = getattr(layer, "__dict__", {})  # classes written in C have none
            if name in own or not hasattr(own.get("env"), "step"):
                break
            layer = own["env"]
        return layer

    def __repr__(self) -> str:
        return f"OldGymEnv({self.old!r})"


def modern(env: Any) -> gymnasium.Env[Any, Any]:
    """Return a Gymnasium environment unchanged, and an old one in an adapter.

    Raises:
        InvalidArgument: `env` is not an environment.
    """
    return env if isinstance(env, gymnasium.Env) else OldGymEnv(env)


def modern_space(space: Any) -> spaces.Space[Any]:
    """Return Gymnasium's equivalent of a space.

    Raises:
        InvalidArgument: Gymnasium has no space of that name.
    """
    if isinstance(space, spaces.Space):
        return space
    build = _SPACES.get(type(space).__name__)
    if build is None:
        raise InvalidArgument(
            f"{space!r} is a {type(space).__module__}.{type(space).__name__}, expected one of {sorted(_SPACES)}: give "
            "the environment one of Gymnasium's spaces"
        )
    return build(space)


_SPACES: dict[str, Callable[[Any], spaces.Space[Any]]] = {
    "Box": lambda space: spaces.Box(
        np.asarray(space.low, space.dtype), np.asarray(space.high, space.dtype), space.shape, space.dtype
    ),
    "Discrete": lambda space: spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0))),
    "MultiDiscrete": lambda space: spaces.MultiDiscrete(np.asarray(space.nvec)),
    "MultiBinary": lambda space: spaces.MultiBinary(space.n),
    "Tuple": lambda space: spaces.Tuple(tuple(modern_space(one) for one in space.spaces)),
    "Dict": lambda space: spaces.Dict({key: modern_space(one) for key, one in space.spaces.items()}),
}


def _is_with_info(result: Any, space: spaces.Space[Any]) -> bool:
    """Return whether a reset returned an observation and an info."""
    is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
    return is_pair and not (isinstance(space, spaces.Tuple) and space.contains(result))


def _parameters(function: Any) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some built-in callables have no signature
        return frozenset()
