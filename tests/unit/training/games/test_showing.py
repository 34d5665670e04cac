"""Captions of films, read back from the drawn text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import ImageDraw

from envfleet.training.games.showing import GameState, add_band, caption_frames

FRAME = np.full((480, 600, 3), 200, np.uint8)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All texts that are drawn, in order."""
    texts: list[str] = []
    draw = ImageDraw.ImageDraw.text

    def note(self: Any, place: Any, text: str, *rest: Any) -> None:
        texts.append(text)
        draw(self, place, text, *rest)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", note)
    return texts


def test_names_stand_on_their_sides_with_the_score_and_the_clock(written: list[str]) -> None:
    states = [
        GameState(0, 0, True, FRAME),
        GameState(0, 60, True, FRAME, outcome=1, is_last=True),
        GameState(1, 0, False, FRAME),
        GameState(1, 25, False, FRAME, outcome=0, is_last=True),
        GameState(2, 5, True, FRAME, outcome=-1, is_last=True),
    ]
    frames = list(caption_frames(states, "mine", "strong", fps=50))
    lines = [tuple(written[at : at + 3]) for at in range(0, len(written), 3)]
    assert lines == [
        ("mine", "0 : 0   0.0 s", "strong"),
        ("mine", "1 : 0   1.2 s", "strong"),
        ("strong", "0 : 1   0.0 s", "mine"),
        ("strong", "0 : 1   0.5 s", "mine"),
        ("mine", "1 : 1   0.1 s", "strong"),
    ]
    assert len(frames) == 2 + 3 * 25  # the last picture of each game stays for half a second
    for frame in frames:
        assert (frame[-480:] == FRAME).all()
        assert frame[:-480].std() > 5


def test_an_episode_for_one_has_its_return_and_step(written: list[str]) -> None:
    list(caption_frames([GameState(0, 1200, True, FRAME, total=-12.345), GameState(1, 0, True, None)], "mine"))
    assert written == ["mine", "return -12.3", "step 1,200"]


@pytest.mark.parametrize("shape", [(480, 600, 3), (210, 160, 3), (64, 64, 3)])
def test_long_names_are_cut_where_they_would_meet(written: list[str], shape: tuple[int, ...]) -> None:
    name = "PPO_2026-01-31_12-00-00_1f0c22ab_vec256/000000250000"
    frame = add_band(np.zeros(shape, np.uint8), (name, "1 : 0", name))
    assert frame.shape[1:] == shape[1:]
    assert written[0] == written[2]
    assert written[0].startswith("…")
    assert name.endswith(written[0][1:])
    columns = np.flatnonzero((frame[: -shape[0]] != 34).any((0, 2)))
    assert columns[0] > 0
    assert columns[-1] < shape[1] - 1
