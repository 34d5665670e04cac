"""Texts above the pictures of a film: who plays, the score, the clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import MissingDependency
from envfleet.training.games.showing import Moment

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

_PAPER, _INK = (34, 34, 34), (255, 255, 255)
_PIXELS_PER_LETTER_SIZE = 25  # of a picture's height
_END_S = 0.5  # that the last picture of a game stays


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
