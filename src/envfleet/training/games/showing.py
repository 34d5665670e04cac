"""Rendered games: frames with names, score and clock; and games against a person."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

import envfleet
from envfleet.envs.games import Game
from envfleet.extras import missing
from envfleet.training.games.matches import MatchRunner, plan_episodes, plan_games
from envfleet.training.games.players import LoadedPlayer

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

_PAPER, _INK = (34, 34, 34), (255, 255, 255)
_PIXELS_PER_LETTER_SIZE = 25  # of a picture's height
_END_S = 0.5  # display time of the last frame of a game


@dataclasses.dataclass(frozen=True, eq=False)
class GameState:
    """State of a game after a step.

    Attributes:
        game: Number of the game.
        step: Steps so far.
        is_left: True if the player has the first of the game's two sides.
        frame: Rendered frame, uint8 `(height, width, 3)`, if the environment renders to arrays.
        outcome: After the last step 1 if the player won, -1 if the opponent won, 0 for a draw; otherwise `None`.
        total: Return so far, in single-player environments.
        is_last: True if the game has ended.
    """

    game: int
    step: int
    is_left: bool
    frame: NDArray[np.uint8] | None
    outcome: int | None = None
    total: float | None = None
    is_last: bool = False


class Person:
    """Policy of a person at the keyboard.

    Args:
        keyboard: Keyboard player from `Game.person`.
    """

    def __init__(self, keyboard: Any) -> None:
        self._keyboard = keyboard

    def act_batch(self, observations: NDArray[Any], deterministic: bool = False) -> NDArray[Any]:
        """Return the action of the pressed keys, for each row."""
        return np.stack([self._keyboard.act(observations[0])] * len(observations))


def show_games(
    env: gym.Env[Any, Any],
    players: Sequence[LoadedPlayer],
    games: int,
    *,
    seed: int = 0,
    side: str = "both",
    game: Game | None = None,
) -> Iterator[GameState]:
    """Play games one after the other: the first games of an evaluation with the same seed.

    Args:
        env: Environment that renders in its `render_mode`; for two-player games from `Game.open`.
        players: Player and opponent; the player alone in single-player environments.
        games: Number of games or episodes.
        seed: Seed of the games.
        side: Side of the player.
        game: Two-player game; `None` for single-player environments.

    Yields:
        State of the game after each step; the environment is closed after the last.
    """
    plan = plan_episodes(games, seed) if game is None else plan_games(game, games, seed, side)
    with envfleet.make(lambda: env, 1, backend="serial") as fleet:
        table = MatchRunner(fleet, plan, players, game)
        for ended in table.play():
            number, is_last = int(table.schedule.episodes[0]), len(ended) > 0
            yield GameState(
                game=number,
                step=int(table.lengths[0]),
                is_left=bool(plan.is_left[number]),
                frame=np.asarray(env.render(), np.uint8) if env.render_mode == "rgb_array" else None,
                outcome=int(plan.outcomes[number]) if is_last and game is not None else None,
                total=float(table.returns[0]) if game is None else None,
                is_last=is_last,
            )


def wants_to_leave() -> bool:
    """Return whether the window was closed or Escape was pressed since the last call."""
    import pygame

    if not pygame.display.get_init():  # the window is not pygame's
        return False
    events = pygame.event.get([pygame.QUIT, pygame.KEYDOWN])
    return any(event.type == pygame.QUIT or event.key == pygame.K_ESCAPE for event in events)


def caption_frames(
    states: Iterable[GameState], player: str, opponent: str | None = None, *, fps: float = 50.0
) -> Iterator[NDArray[np.uint8]]:
    """Add a band with names, score and clock above the frames of games.

    Two-player games show each player's name on its side, the games won so far, and the seconds of this game;
    single-player episodes show name, return so far and step. The last frame of a game is repeated for half a second.

    Args:
        states: States with frames.
        player: Name of the player.
        opponent: Name of the opponent; `None` in single-player environments.
        fps: Frames per second, and steps per second of game time.

    Yields:
        Frames, uint8 `(height, width, 3)`, taller than those of the states by the height of the band.

    Raises:
        MissingDependency: Pillow is not installed.
    """
    wins = [0, 0]
    for state in states:
        if state.outcome:
            wins[state.outcome < 0] += 1
        if state.frame is None:
            continue
        if opponent is None:
            texts = (player, "" if state.total is None else f"return {state.total:.1f}", f"step {state.step:,}")
        else:
            sides = ((player, wins[0]), (opponent, wins[1]))
            left, right = sides if state.is_left else sides[::-1]
            texts = (left[0], f"{left[1]} : {right[1]}   {state.step / fps:.1f} s", right[0])
        yield from [add_band(state.frame, texts)] * (max(round(_END_S * fps), 1) if state.is_last else 1)


def add_band(frame: NDArray[np.uint8], texts: tuple[str, str, str]) -> NDArray[np.uint8]:
    """Return a frame with a band above it and three texts: left, center, right; long texts are shortened."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise missing("video captions", error) from error
    height, width, _ = frame.shape
    size = max(height // _PIXELS_PER_LETTER_SIZE, 9)
    font: Any = ImageFont.load_default(size)
    band = Image.new("RGB", (width, 2 * size), _PAPER)
    draw, middle = ImageDraw.Draw(band), font.getlength(texts[1])
    room = (width - middle) / 2 - 2 * size
    for text, x, anchor, most in (
        (texts[0], size / 2, "lm", room),
        (texts[1], width / 2, "mm", width),
        (texts[2], width - size / 2, "rm", room),
    ):
        draw.text((x, band.height / 2), _cut(text, font, most), _INK, font, anchor)
    return np.concatenate([np.asarray(band, np.uint8), frame])


def _cut(text: str, font: FreeTypeFont, most: float) -> str:
    """Return the longest end of a text that fits; names of files differ at their ends."""
    shown = text
    while font.getlength(shown) > most and len(shown) > 1:
        shown = f"…{shown[2:]}"
    return shown
