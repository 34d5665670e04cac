"""Environments by name: the ids that `gymnasium.make` takes, and callables in modules."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from envfleet.errors import InvalidArgument, UnknownEnv


def find_spec(source: str | EnvSpec) -> EnvSpec:
    """The spec of an id, or the spec given; `"module:id"` imports the module first.

    Raises:
        InvalidArgument: The module cannot be imported.
        UnknownEnv: There is no such id; says which are near.
    """
    if isinstance(source, EnvSpec):
        return source
    module, _, env_id = source.rpartition(":")
    if module:
        _import(module, source)
    try:
        return gym.spec(env_id)
    except gym.error.Error as error:
        near = difflib.get_close_matches(env_id, gym.registry, n=3)
        advice = f"close to it: {', '.join(near)}" if near else "`envfleet envs` lists what is registered"
        raise UnknownEnv(
            f"env={source!r}, expected the id of a registered environment ({str(error).rstrip('.')}): {advice}; where "
            "a package has to be imported first, write 'module:id'"
        ) from error


def find_callable(source: str) -> Callable[..., gym.Env[Any, Any]] | None:
    """The callable that `"module:name"` names; `None` if it is an id, alone or with the module that registers it.

    Raises:
        InvalidArgument: The module cannot be imported.
    """
    module, _, name = source.rpartition(":")
    if not module:
        return None
    found = getattr(_import(module, source), name, None)
    return found if callable(found) and name not in gym.registry else None


def _import(module: str, source: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidArgument(
            f"env={source!r}: the module {module!r} cannot be imported ({error}): run from the folder that holds it or "
            "install it; expected 'module:id', 'module:callable', or the id alone"
        ) from error
