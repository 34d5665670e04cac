"""Games to look at: one picture after the other, with who plays, score and clock above; and games against a person."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

import envfleet
from envfleet.envs.games import Game
from envfleet.errors import MissingDependency
from envfleet.training.games.matches import Table, plan_episodes, plan_games
from envfleet.training.games.players import Seated

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

_PAPER, _INK = (34, 34, 34), (255, 255, 255)
_PIXELS_PER_LETTER_SIZE = 25  # of a picture's height
_END_S = 0.5  # that the last picture of a game stays


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
    players: Sequence[Seated],
    games: int,
    *,
    seed: int = 0,
    side: str = "both",
    game: Game | None = None,
) -> Iterator[Moment]:
    """Play games, or episodes for one, one after the other: the first ones that an evaluation with this seed counts.

    Args:
        env: Shows or draws them, as its `render_mode` says; of a game from `Game.open`.
        players: The player and its opponent; in environments for one the player alone.
        games: How many.
        seed: Of the games.
        side: Where the player sits.
        game: That is played; `None` for environments for one.

    Yields:
        Every moment of every game; the environment is closed after the last.
    """
    plan = plan_episodes(games, seed) if game is None else plan_games(game, games, seed, side)
    with envfleet.make(lambda: env, 1, backend="serial") as fleet:
        table = Table(fleet, plan, players, game)
        for ended in table.play():
            number, is_last = int(table.seating.games[0]), len(ended) > 0
            yield Moment(
                game=number,
                step=int(table.lengths[0]),
                is_left=bool(plan.is_left[number]),
                frame=np.asarray(env.render(), np.uint8) if env.render_mode == "rgb_array" else None,
                outcome=int(plan.outcomes[number]) if is_last and game is not None else None,
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


def caption_frames(
    moments: Iterable[Moment], player: str, opponent: str | None = None, *, fps: float = 50.0
) -> Iterator[NDArray[np.uint8]]:
    """Write names, score and clock above the pictures of games.

    Of games for two: either's name on its side, the games each has won so far, the seconds of this one. Of episodes
    for one: name, return so far, step. The last picture of a game stays for half a second.

    Args:
        moments: With pictures.
        player: Name of the player.
        opponent: Name of the opponent; `None` where nobody plays against it.
        fps: Pictures shown in a second, and steps of a second of the game.

    Yields:
        Pictures, uint8 `(height, width, 3)`, higher by a band than those of the moments.

    Raises:
        MissingDependency: Pillow is not installed.
    """
    wins = [0, 0]
    for moment in moments:
        if moment.outcome:
            wins[moment.outcome < 0] += 1
        if moment.frame is None:
            continue
        if opponent is None:
            texts = (player, "" if moment.total is None else f"return {moment.total:.1f}", f"step {moment.step:,}")
        else:
            sides = ((player, wins[0]), (opponent, wins[1]))
            left, right = sides if moment.is_left else sides[::-1]
            texts = (left[0], f"{left[1]} : {right[1]}   {moment.step / fps:.1f} s", right[0])
        yield from [add_band(moment.frame, texts)] * (max(round(_END_S * fps), 1) if moment.is_last else 1)


def add_band(frame: NDArray[np.uint8], texts: tuple[str, str, str]) -> NDArray[np.uint8]:
    """Return a picture with a band above it that has three texts: left, in the middle, right; long ones are cut."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise MissingDependency("texts in films need pillow: pip install 'envfleet[video]'") from error
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
    """Return as much of a text as fits, from its end, where names of files differ."""
    shown = text
    while font.getlength(shown) > most and len(shown) > 1:
        shown = f"…{shown[2:]}"
    return shown
