"""Registered environments by the ids that `gymnasium.make` takes."""

from __future__ import annotations

import importlib

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from envfleet.errors import InvalidArgument


def find_spec(source: str | EnvSpec) -> EnvSpec:
    """The spec of an id, or the spec given; `"module:id"` imports the module first.

    Raises:
        InvalidArgument: There is no such module.
        gymnasium.error.UnregisteredEnv: There is no such id; says which are near.
    """
    if isinstance(source, EnvSpec):
        return source
    module, _, env_id = source.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise InvalidArgument(
                f"env={source!r}: there is no module {error.name!r} to import; write 'module:id', or the id alone"
            ) from error
    return gym.spec(env_id)
