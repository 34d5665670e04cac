"""Rendering of a game with pygame, as an array or in a window, without a physics engine."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.hockey import constants as c
from envfleet.envs.keyboard import load_pygame, no_window
from envfleet.errors import InvalidArgument

if TYPE_CHECKING:
    import pygame

    from envfleet.envs.hockey.world import World

Pose = tuple[float, float, float]
_MODES = ("human", "rgb_array")
METADATA = {"render_modes": [*_MODES], "render_fps": c.STEPS_PER_SECOND}
"""Gymnasium's `metadata` of the environments."""

_SIZE = (c.PICTURE_WIDTH, c.PICTURE_HEIGHT)
_SCALE = c.PIXELS_PER_METER
_CENTER_RADIUS, _GOAL_RADIUS = 100, 75
_GOAL_BOX_SIZE = (100, 200)
_OUTLINE_WIDTH = 2


class Screen:
    """Renderer of an environment; the first frame imports pygame. A copy starts without a window.

    Args:
        render_mode: `"rgb_array"`, `"human"` or `None`.

    Raises:
        InvalidArgument: The render mode is unknown.
    """

    def __init__(self, render_mode: str | None) -> None:
        if render_mode not in (None, *_MODES):
            raise InvalidArgument(f"render_mode={render_mode!r}: pass 'human', 'rgb_array' or None")
        self._render_mode = render_mode
        self._window: pygame.Surface | None = None
        self._clock: pygame.time.Clock | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Screen, (self._render_mode,)

    def draw(self, world: World, mode: str | None = None) -> NDArray[np.uint8] | None:
        """Draw a game.

        Args:
            world: World of the game.
            mode: `"rgb_array"` or `"human"`; by default the screen's.

        Returns:
            Frame, uint8 `(480, 600, 3)`, for `"rgb_array"`, else `None`.

        Raises:
            InvalidArgument: The render mode is missing or unknown, or no window can be opened.
        """
        mode = self._render_mode if mode is None else mode
        if mode not in _MODES:
            raise InvalidArgument(f"render mode {mode!r}: make the environment with render_mode='rgb_array' or 'human'")
        poses = [(racket.position.x, racket.position.y, racket.body.angle) for racket in world.rackets]
        puck = (world.puck.position.x, world.puck.position.y)
        if mode == "rgb_array":
            return self.paint(poses, puck)
        self._show(self._draw(poses, puck))
        return None

    def follow(self, world: World) -> None:
        """Show a game if the render mode is `"human"`."""
        if self._render_mode == "human":
            self.draw(world)

    def paint(self, rackets: Sequence[Pose], puck: c.Point) -> NDArray[np.uint8]:
        """Draw a game as an array.

        Args:
            rackets: x, y and angle of both rackets, in metres and radians.
            puck: Position of the puck.

        Returns:
            Frame, uint8 `(480, 600, 3)`.
        """
        pixels = load_pygame().surfarray.pixels3d(self._draw(rackets, puck))
        # (width, height, 3) -> (height, width, 3), y up
        return np.ascontiguousarray(pixels.swapaxes(0, 1)[::-1], np.uint8)

    def _show(self, picture: pygame.Surface) -> None:
        """Show a frame in the window; wait to limit the rate to 50 frames per second."""
        pygame = load_pygame()
        if self._window is None or self._clock is None:
            try:
                pygame.display.init()
                pygame.display.set_caption("Hockey")
                self._window, self._clock = pygame.display.set_mode(_SIZE), pygame.time.Clock()
            except pygame.error as error:
                raise no_window(error) from error
        self._window.blit(pygame.transform.flip(picture, False, True), (0, 0))
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(c.STEPS_PER_SECOND)

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            load_pygame().display.quit()
        self._window = self._clock = None

    def _draw(self, rackets: Sequence[Pose], puck: c.Point) -> pygame.Surface:
        """Draw with y downwards."""
        surface: pygame.Surface = self._ground.copy()
        for pose, outline, color in zip(rackets, c.RACKET_OUTLINES, c.RACKET_COLORS, strict=True):
            _polygon(surface, pose, outline, color)
        _circle(surface, c.BLACK, (puck[0] * _SCALE, puck[1] * _SCALE), c.PUCK_RADIUS_PIXELS)
        return surface

    @functools.cached_property
    def _ground(self) -> Any:
        """Draw the background, which does not change."""
        pygame = load_pygame()
        surface = pygame.Surface(_SIZE, depth=32)
        surface.fill(c.WHITE)
        middle = (c.PICTURE_WIDTH / 2, c.PICTURE_HEIGHT / 2)
        _circle(surface, c.CENTER_COLOR, middle, _CENTER_RADIUS)
        for x, box_x in ((50.0, 60), (550.0, 440)):
            _circle(surface, c.GOAL_COLOR, (x, middle[1]), _GOAL_RADIUS)
            pygame.draw.rect(surface, c.WHITE, ((box_x, 140), _GOAL_BOX_SIZE))
        for (x, y), outline in c.BARRIERS:
            _polygon(surface, (x, y, 0.0), outline, c.BLACK)
        return surface


def _circle(surface: pygame.Surface, color: c.Color, center: c.Point, radius: int) -> None:
    draw = load_pygame().draw
    draw.circle(surface, color, center, radius)
    draw.circle(surface, color, center, radius, _OUTLINE_WIDTH)


def _polygon(surface: pygame.Surface, pose: Pose, outline: c.Outline, color: c.Color) -> None:
    x, y, angle = pose
    cos, sin = math.cos(angle), math.sin(angle)
    corners = [((x + cos * u - sin * v) * _SCALE, (y + sin * u + cos * v) * _SCALE) for u, v in outline]
    draw = load_pygame().draw
    draw.polygon(surface, color, corners)
    draw.polygon(surface, color, corners, _OUTLINE_WIDTH)
