"""Games to look at, one picture after the other, and games against a person."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.hockey.opponents import HumanOpponent
from envfleet.envs.hockey.two_player import HockeyTwoEnv
from envfleet.training.games.matches import Side, plan_games, table_params
from envfleet.training.games.players import Seated
from envfleet.training.games.seating import SeatedPolicy, Seating


@dataclasses.dataclass(frozen=True, eq=False)
class Moment:
    """A game at one of its steps.

    Attributes:
        game: Its number.
        step: Steps played.
        is_left: Whether the player has the left goal.
        frame: The picture, uint8 `(480, 600, 3)`, where the environment renders to arrays.
        outcome: At its last moment 1 if the player won, -1 if the opponent did, 0 for a draw; else `None`.
        total: Of an episode for one: its return so far.
    """

    game: int
    step: int
    is_left: bool
    frame: NDArray[np.uint8] | None
    outcome: int | None = None
    total: float | None = None


class Person:
    """A person at the keyboard as a policy.

    Args:
        env: Whose window has the focus.
        is_left: Where the person plays.
    """

    def __init__(self, env: HockeyTwoEnv, is_left: bool) -> None:
        self._hands = HumanOpponent(env, player=1 if is_left else 2)

    def act_batch(self, observations: NDArray[Any], deterministic: bool = False) -> NDArray[Any]:
        """Return what the keyboard says, for every row."""
        return np.tile(self._hands.act(observations[0]), (len(observations), 1))


def show_games(
    env: HockeyTwoEnv, player: Seated, opponent: Seated, games: int, *, seed: int = 0, side: Side = "both"
) -> Iterator[Moment]:
    """Play games one after the other, on Box2D; `envfleet.training.games.play` plays the same with these arguments.

    Args:
        env: Shows or draws them, as its `render_mode` says.
        player: Who.
        opponent: Against whom.
        games: How many.
        seed: Of the games.
        side: Where the player sits.

    Yields:
        Every moment of every game.
    """
    plan, seating = plan_games(games, seed, side), Seating(games, 1)
    players = (player, opponent)
    policies = [None if one.policy is None else SeatedPolicy(one.policy, seating) for one in players]
    while len(seating.seat(np.arange(1))):
        game = int(seating.games[0])
        is_left = bool(plan.is_left[game])
        params = table_params([one.strength for one in players], is_left, bool(plan.is_starting[game]))
        observation, _ = env.reset(seed=int(plan.seeds[game]), options={"params": params})
        step, outcome = 0, None
        yield Moment(game, step, is_left, _frame(env))
        while outcome is None:
            actions = np.zeros((2, 4), np.float32)
            for number, policy in enumerate(policies):
                if policy is not None:
                    row = int(not is_left) ^ number
                    actions[row] = policy.act(observation[None, row])[0]
            observation, _, terminated, truncated, info = env.step(actions)
            if terminated or truncated:
                outcome = int(info["winner"]) if is_left else -int(info["winner"])
            step += 1
            yield Moment(game, step, is_left, _frame(env), outcome)


def wants_to_leave() -> bool:
    """Return whether somebody closed the window or pressed Escape since this was last asked."""
    import pygame

    events = pygame.event.get([pygame.QUIT, pygame.KEYDOWN])
    return any(event.type == pygame.QUIT or event.key == pygame.K_ESCAPE for event in events)


def _frame(env: HockeyTwoEnv) -> NDArray[np.uint8] | None:
    return env.render() if env.render_mode == "rgb_array" else None
