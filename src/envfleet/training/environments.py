"""Environment of a phase as a game, as the source of a fleet, and as one environment to inspect."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym

from envfleet.envs import games
from envfleet.envs.games import Game
from envfleet.errors import InvalidArgument
from envfleet.options import Options
from envfleet.sources import Blueprint, find_callable, is_kernel_class
from envfleet.training.phases import Environment


def find_game(environment: Environment) -> Game | None:
    """Return the two-player game of an environment; `None` for a single-player environment.

    Raises:
        InvalidArgument: A callable cannot be imported or called, or its game is not for two players.
    """
    return None if environment.is_remote else games.find_game(environment.id, environment.kwargs)


def source_of(environment: Environment) -> tuple[Any, dict[str, Any]]:
    """Return the environment argument of `envfleet.make` for a single-player environment, and its keywords.

    Raises:
        InvalidArgument: The module of a callable cannot be imported.
    """
    make_env = find_callable(environment.id)
    if make_env is None or is_kernel_class(make_env):
        return make_env or environment.id, dict(environment.kwargs)
    return functools.partial(make_env, **environment.kwargs), {}


def open_one(environment: Environment, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make one single-player environment, to inspect or to render.

    Args:
        environment: Environment section.
        **kwargs: Further arguments of the environment, such as `render_mode`.

    Raises:
        InvalidArgument: The environment is on a service.
    """
    if environment.is_remote:
        raise InvalidArgument(
            f"{environment.kwargs['env']!r} is on a service and cannot be made here: name an installed environment"
        )
    source, known = source_of(environment.model_copy(update={"kwargs": {**environment.kwargs, **kwargs}}))
    return Blueprint(source, 1, Options(), known).builders(0)[0].build({})
