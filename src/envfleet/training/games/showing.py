"""Games to look at, one picture after the other, and games against a person."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envfleet.envs.games import Game, known_game
from envfleet.training.config.phases import DEFAULT_GAME
from envfleet.training.games.matches import deal, plan_games
from envfleet.training.games.players import Seated
from envfleet.training.games.seating import Policy, SeatedPolicy, Seating


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

    Yields:
        Every moment of every game.
    """
    game = game or known_game(DEFAULT_GAME)
    plan, seating = plan_games(game, games, seed, side), Seating(games, 1)
    players = (player, opponent)
    policies = [None if one.policy is None else SeatedPolicy(one.policy, seating) for one in players]
    while len(seating.seat(np.arange(1))):
        number = int(seating.games[0])
        is_left = bool(plan.is_left[number])
        options = deal(game, [one.script for one in players], is_left, bool(plan.is_starting[number]))
        observation, _ = env.reset(seed=int(plan.seeds[number]), options=options)
        step, outcome = 0, None
        yield Moment(number, step, is_left, _frame(env))
        while outcome is None:
            actions = np.zeros(env.action_space.shape or (), env.action_space.dtype)
            for place, policy in enumerate(policies):
                if policy is not None:
                    row = int(not is_left) ^ place
                    actions[row] = policy.act(observation[None, row])[0]
            observation, _, terminated, truncated, info = env.step(actions)
            if terminated or truncated:
                outcome = int(info["winner"]) if is_left else -int(info["winner"])
            step += 1
            yield Moment(number, step, is_left, _frame(env), outcome, is_last=outcome is not None)


def show_episodes(env: gym.Env[Any, Any], policy: Policy, episodes: int, *, seed: int = 0) -> Iterator[Moment]:
    """Play in an environment for one, an episode after the other; `evaluate_returns` counts the same ones.

    Args:
        env: Shows or draws them, as its `render_mode` says.
        policy: Who.
        episodes: How many.
        seed: Of the episodes.

    Yields:
        Every moment of every episode.
    """
    seating = Seating(episodes, 1)
    seated = SeatedPolicy(policy, seating)
    seeds = np.random.SeedSequence(seed).generate_state(episodes)
    while len(seating.seat(np.arange(1))):
        number, step, total, has_ended = int(seating.games[0]), 0, 0.0, False
        observation, _ = env.reset(seed=int(seeds[number]))
        yield Moment(number, step, True, _frame(env), total=total)
        while not has_ended:
            observation, reward, terminated, truncated, _ = env.step(seated.act(np.asarray(observation)[None])[0])
            total, step, has_ended = total + float(reward), step + 1, bool(terminated or truncated)
            yield Moment(number, step, True, _frame(env), total=total, is_last=has_ended)


def wants_to_leave() -> bool:
    """Return whether somebody closed the window or pressed Escape since this was last asked."""
    import pygame

    if not pygame.display.get_init():  # the window is not pygame's
        return False
    events = pygame.event.get([pygame.QUIT, pygame.KEYDOWN])
    return any(event.type == pygame.QUIT or event.key == pygame.K_ESCAPE for event in events)


def _frame(env: gym.Env[Any, Any]) -> NDArray[np.uint8] | None:
    frame: Any = env.render() if env.render_mode == "rgb_array" else None
    return None if frame is None else np.asarray(frame, np.uint8)
