"""Games to look at, one picture after the other, and games against a person."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

import envfleet
from envfleet.envs.games import Game, known_game
from envfleet.training.config.phases import DEFAULT_GAME
from envfleet.training.games.matches import Games, Table, plan_episodes, plan_games
from envfleet.training.games.players import Seated
from envfleet.training.games.seating import Policy


@dataclasses.dataclass(frozen=True, eq=False)
class Moment:
    """A game at one of its steps.

    Attributes:
        game: Its number.
        step: Steps played.
        is_left: Whether the player has the first of the game's two seats.
        frame: The picture, uint8 `(height, width, 3)`, where the environment renders to arrays.
        outcome: At its last moment 1 if the player won, -1 if the opponent did, 0 for a draw; else `None`.
        total: Of an episode for one: its return so far.
        is_last: Whether it ends with this.
    """

    game: int
    step: int
    is_left: bool
    frame: NDArray[np.uint8] | None
    outcome: int | None = None
    total: float | None = None
    is_last: bool = False


class Person:
    """A person at the keyboard as a policy.

    Args:
        hands: From `Game.person`.
    """

    def __init__(self, hands: Any) -> None:
        self._hands = hands

    def act_batch(self, observations: NDArray[Any], deterministic: bool = False) -> NDArray[Any]:
        """Return what the keyboard says, for every row."""
        return np.stack([self._hands.act(observations[0])] * len(observations))


def show_games(
    env: gym.Env[Any, Any],
    player: Seated,
    opponent: Seated,
    games: int,
    *,
    seed: int = 0,
    side: str = "both",
    game: Game | None = None,
) -> Iterator[Moment]:
    """Play games one after the other; `envfleet.training.games.play` plays the same with these arguments.

    Args:
        env: From `Game.open`; shows or draws them, as its `render_mode` says.
        player: Who.
        opponent: Against whom.
        games: How many.
        seed: Of the games.
        side: Where the player sits.
        game: That is played; by default the first of `registry.GAMES`.

    Returns:
        Every moment of every game; the environment is closed after the last.
    """
    game = game or known_game(DEFAULT_GAME)
    return _show(env, plan_games(game, games, seed, side), [player, opponent], game)


def show_episodes(env: gym.Env[Any, Any], policy: Policy, episodes: int, *, seed: int = 0) -> Iterator[Moment]:
    """Play in an environment for one, an episode after the other; `evaluate_returns` counts the same ones.

    Args:
        env: Shows or draws them, as its `render_mode` says.
        policy: Who.
        episodes: How many.
        seed: Of the episodes.

    Returns:
        Every moment of every episode; the environment is closed after the last.
    """
    return _show(env, plan_episodes(episodes, seed), [Seated("", policy=policy)], None)


def _show(env: gym.Env[Any, Any], games: Games, players: list[Seated], game: Game | None) -> Iterator[Moment]:
    with envfleet.make(lambda: env, 1, backend="serial") as fleet:
        table = Table(fleet, games, players, game)
        for ended in table.play():
            number, is_last = int(table.seating.games[0]), len(ended) > 0
            yield Moment(
                game=number,
                step=int(table.lengths[0]),
                is_left=bool(games.is_left[number]),
                frame=np.asarray(env.render(), np.uint8) if env.render_mode == "rgb_array" else None,
                outcome=int(games.outcomes[number]) if is_last and game is not None else None,
                total=float(table.returns[0, 0]) if game is None else None,
                is_last=is_last,
            )


def wants_to_leave() -> bool:
    """Return whether somebody closed the window or pressed Escape since this was last asked."""
    import pygame

    if not pygame.display.get_init():  # the window is not pygame's
        return False
    events = pygame.event.get([pygame.QUIT, pygame.KEYDOWN])
    return any(event.type == pygame.QUIT or event.key == pygame.K_ESCAPE for event in events)
