"""Save and restore one sub-environment in the middle of an episode."""

from __future__ import annotations

import copy
import io
from typing import Any, NamedTuple

import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium.utils import EzPickle

from envfleet.errors import InvalidArgument, StateUnsupported


class EnvState(NamedTuple):
    """A saved sub-environment.

    Attributes:
        kind: `"own"` (the environment's `get_state`) or `"pickle"`.
        value: Result of `get_state`, or a pickle.
        layers: For `"own"`: the attributes of each wrapper and of the environment's own generator.
    """

    kind: str
    value: Any
    layers: list[dict[str, Any]]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # which has no types
    """Pickles the full state of objects that pickle as constructor arguments only, such as MuJoCo environments.

    Rejects objects with a `__del__` and without pickling methods, such as a connection to PyBullet, which is a number:
    copies would share a resource that the first one releases. Environments are closed, not deleted.
    """

    def reducer_override(self, obj: Any) -> Any:
        """Return how to pickle an object."""
        if hasattr(type(obj), "__del__") and not isinstance(obj, gym.Env) and _pickles_by_default(type(obj)):
            raise TypeError(f"{type(obj).__name__} releases a resource in __del__ that a copy would share")
        if getattr(type(obj), "__getstate__", None) is not EzPickle.__getstate__:
            return super().reducer_override(obj)
        return object.__new__, (type(obj),), vars(obj), None, None, _fill


def _pickles_by_default(kind: type) -> bool:
    return not hasattr(kind, "__setstate__") and all(
        getattr(kind, name) is getattr(object, name) for name in ("__reduce__", "__reduce_ex__", "__getstate__")
    )


def _fill(obj: Any, attributes: dict[str, Any]) -> None:
    vars(obj).update(attributes)


def save_env(env: gym.Env[Any, Any]) -> EnvState:
    """Save a sub-environment: by its own `get_state`, else by pickling all of it.

    Raises:
        StateUnsupported: It has neither, or raises this error itself.
    """
    if hasattr(env.unwrapped, "get_state") and hasattr(env.unwrapped, "set_state"):
        return EnvState("own", copy.deepcopy(env.unwrapped.get_state()), [_layer(layer) for layer in _layers(env)])
    pickled = io.BytesIO()
    try:
        _Pickler(pickled).dump(env)
    except StateUnsupported:  # of the environment itself, which says better what to do
        raise
    except Exception as error:  # any type may fail in its own way
        raise StateUnsupported(
            f"{env} has no get_state/set_state and cannot be pickled ({error}): give it get_state() and "
            "set_state(state)"
        ) from error
    return EnvState("pickle", pickled.getvalue(), [])


def load_env(env: gym.Env[Any, Any], state: EnvState) -> gym.Env[Any, Any]:
    """Restore a saved sub-environment.

    Args:
        env: Sub-environment to replace.
        state: State from `save_env`; may be used repeatedly.

    Returns:
        `env` itself if it has `set_state`, else a new object that replaces it.

    Raises:
        InvalidArgument: The state is of another class of environment.
    """
    kind, value, layers = state
    if kind == "own":
        env.unwrapped.set_state(copy.deepcopy(value))  # type: ignore[attr-defined]  # checked when saved
        for layer, attributes in zip(_layers(env), layers, strict=True):
            vars(layer).update(copy.deepcopy(attributes))
        return env
    restored: gym.Env[Any, Any] = cloudpickle.loads(value)
    if type(restored.unwrapped).__qualname__ != type(env.unwrapped).__qualname__:
        raise InvalidArgument(f"the state is of {restored}, expected one of {env}: pass states of the same environment")
    return restored


def rng_state_of(env: gym.Env[Any, Any]) -> Any:
    """Return the state of a sub-environment's generator, or `None` before its first use."""
    rng = getattr(env.unwrapped, "_np_random", None)
    return None if rng is None else rng.bit_generator.state


def set_rng_state(env: gym.Env[Any, Any], state: Any) -> None:
    """Set a sub-environment's generator to a state from `rng_state_of`; `None` changes nothing."""
    if state is not None:
        rng = np.random.Generator(getattr(np.random, state["bit_generator"])())
        rng.bit_generator.state = state
        env.unwrapped.np_random = rng


def _layers(env: gym.Env[Any, Any]) -> list[gym.Env[Any, Any]]:
    layers = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _layer(layer: gym.Env[Any, Any]) -> dict[str, Any]:
    if isinstance(layer, gym.Wrapper):
        kept = {key: value for key, value in vars(layer).items() if key not in ("env", "spec", "_cached_spec")}
    else:
        kept = {key: value for key, value in vars(layer).items() if key in ("_np_random", "_np_random_seed")}
    try:
        return copy.deepcopy(kept)
    except Exception as error:
        raise StateUnsupported(f"{type(layer).__name__} holds attributes that cannot be copied: {error}") from error
