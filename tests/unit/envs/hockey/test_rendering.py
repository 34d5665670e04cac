"""The picture shows what is where, in the public environment's colours."""

from __future__ import annotations

import numpy as np
import pygame
import pytest

from envfleet.envs.hockey import HockeyEnv
from envfleet.envs.keyboard import require_display
from envfleet.errors import InvalidArgument

ORANGE, BLUE, BLACK, WHITE = (235, 98, 53), (93, 158, 199), (0, 0, 0), (255, 255, 255)


def picture_of(
    *, one: tuple[float, float, float], two: tuple[float, float, float], puck: tuple[float, float]
) -> np.ndarray:
    env = HockeyEnv(render_mode="rgb_array")
    env.reset(seed=1)
    env.set_state([*one, 0, 0, 0, *two, 0, 0, 0, *puck, 0, 0, 0, 0])
    picture = env.render()
    env.close()
    assert picture is not None
    return picture


def color_at(picture: np.ndarray, x: float, y: float) -> tuple[int, ...]:
    """Colour at a place given in metres from the centre, y up."""
    return tuple(picture[round(240 - 60 * y), round(300 + 60 * x)].tolist())


def test_things_are_where_they_are() -> None:
    picture = picture_of(one=(-2, 1, 0), two=(2, -1, 0), puck=(0.5, -2.5))
    assert picture.shape == (480, 600, 3)
    assert picture.dtype == np.dtype(np.uint8)
    assert color_at(picture, -2, 1) == ORANGE
    assert color_at(picture, 2, -1) == BLUE
    assert color_at(picture, 0.5, -2.5) == BLACK
    assert color_at(picture, 0.5, 2.5) == WHITE
    assert color_at(picture, 0, 0) == (204, 204, 204)
    assert color_at(picture, -4.5, 0) == color_at(picture, 4.5, 0) == (239, 203, 138)
    for x, y in ((0, 3.5), (0, -3.5), (-4, 3), (4, -3)):
        assert color_at(picture, x, y) == BLACK


def test_sizes() -> None:
    """Rackets are as large as their mass says, and the outline comes on top, wherever they look."""
    picture = picture_of(one=(-2, 2, 0), two=(2, 2, 1.5), puck=(0, -2.5))
    inner = picture[300:420, 100:500]
    assert (inner == BLACK).all(-1).sum() == pytest.approx(np.pi * 13**2, rel=0.05)
    area = (58.0 / (200 / 1.2)) * 60**2  # mass by density, m² to pixels
    for color in (ORANGE, BLUE):
        assert area < (picture == color).all(-1).sum() < 1.2 * area


def test_a_racket_turns_counterclockwise() -> None:
    """The flat side looks right at angle 0, and up after a quarter turn."""
    flat = 0.08
    picture = picture_of(one=(-2, 1, np.pi / 2), two=(3, 1, 0), puck=(0, -2.5))
    assert color_at(picture, -2.3, 1 + flat - 0.02) == ORANGE
    assert color_at(picture, -2.3, 1 + flat + 0.08) == WHITE
    assert color_at(picture, -2.0, 1 - 0.38) == ORANGE


def test_a_display_that_nobody_sees_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SDL_VIDEODRIVER", "SDL_VIDEO_DRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pygame.display, "init", lambda: None)
    monkeypatch.setattr(pygame.display, "get_driver", lambda: "offscreen")
    with pytest.raises(InvalidArgument, match=r"no window can be opened here \(there is no display\): .*rgb_array"):
        require_display()
    monkeypatch.setattr(pygame.display, "get_driver", lambda: "x11")
    require_display()
    monkeypatch.setattr(pygame.display, "get_driver", lambda: "dummy")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    require_display()


def test_a_window_that_cannot_be_opened_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "none-such")
    with pytest.raises(InvalidArgument, match=r"no window can be opened here \(.*\): .*rgb_array"):
        HockeyEnv(render_mode="human").reset(seed=1)


def test_a_window_shows_the_game(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = HockeyEnv(render_mode="human")
    env.reset(seed=1)
    env.step(np.zeros(8))
    shown = pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1)
    np.testing.assert_array_equal(shown, env.render(mode="rgb_array"))
    env.close()
    assert not pygame.display.get_init()
    env.close()
