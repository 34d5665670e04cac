"""Whether an agent that chooses among numbered actions has some to choose from."""

from __future__ import annotations

import contextlib
from typing import Any

from gymnasium import spaces

from envfleet.envs.games import find_game
from envfleet.errors import InvalidArgument
from envfleet.training.config.phases import Environment
from envfleet.training.config.run import RunConfig


def check_actions(config: RunConfig) -> None:
    """Check that DDDQN plays by numbered actions, or by those of a game that has a table of them.

    For DDDQN an environment that is no known game is made once, to look at its actions.

    Raises:
        InvalidArgument: Its actions are continuous, or it cannot be made.
    """
    agent, place = config.agent, config.curriculum.phases[0].environment
    if agent.type != "DDDQN" or place.is_remote:
        return
    game = find_game(place.id, place.kwargs)
    if game is None:
        space = _actions_of(place)
    elif game.action_table(agent.action_fineness, agent.action_combined, place.settings) is None:
        space = game.action_space
    else:
        return
    if isinstance(space, spaces.Box):
        raise InvalidArgument(
            f"agent.type is 'DDDQN', which chooses among numbered actions, but {place.id!r} has continuous ones, "
            f"{space}: take SAC, TD3 or PPO"
        )


def _actions_of(place: Environment) -> spaces.Space[Any]:
    try:
        with contextlib.closing(place.make()) as env:
            return env.action_space
    except Exception as error:
        raise InvalidArgument(
            f"curriculum.phases[0].environment.id is {place.id!r}, which cannot be made ({error}): check its id and "
            "kwargs"
        ) from error
