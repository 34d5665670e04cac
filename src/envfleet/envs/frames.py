"""Drawing of frames by Gymnasium's environments, or as grids of colored cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

CELL_PIXELS = 32
"""Width and height of one cell of a grid."""

_GRID_LINE = (210, 210, 204)

Color = tuple[int, int, int]
"""Red, green and blue."""

COLORS: Final[tuple[Color, ...]] = ((236, 236, 230), (84, 88, 96), (226, 88, 34), (64, 168, 92))
"""Colors of floor, wall, lava and goal in grid worlds and on boards."""

AGENT_COLOR: Final[Color] = (40, 92, 200)


def draw_original(
    make_env: Callable[..., gym.Env[Any, Any]],
    size: tuple[int, int] | None,
    *,
    surface: str = "screen",
    **attributes: Any,
) -> NDArray[np.uint8]:
    """Draw one frame with a new environment of Gymnasium, so that threads can draw at the same time.

    Args:
        make_env: Class of the environment.
        size: Width and height of the frame; `None` for the environment's `window_size`.
        surface: Name of the environment's attribute for the pygame surface.
        attributes: Attributes to set before drawing, such as the state.

    Returns:
        uint8 `(height, width, 3)`.

    Raises:
        gymnasium.error.DependencyNotInstalled: pygame is not installed.
    """
    try:
        import pygame
    except ImportError as error:
        raise DependencyNotInstalled(
            "frames of Gymnasium's environments are drawn by pygame, which is not installed: pip install pygame"
        ) from error
    env: Any = make_env(render_mode="rgb_array")
    # An environment that finds a surface and a clock leaves sound and display alone: 0.2 s less, and no messages.
    for name, value in {surface: pygame.Surface(size or env.window_size), "clock": object(), **attributes}.items():
        setattr(env, name, value)
    return np.asarray(env.render(), np.uint8)


def draw_cells(colors: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Draw a grid of colored cells with lines between them.

    Args:
        colors: Red, green and blue of each cell, uint8 `(height, width, 3)`.

    Returns:
        uint8 `(32 * height, 32 * width, 3)`.
    """
    frame = colors.repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)
    frame[::CELL_PIXELS] = frame[:, ::CELL_PIXELS] = _GRID_LINE
    return frame


def draw_disc(frame: NDArray[np.uint8], row: float, column: float, color: Color, radius: float = 0.36) -> None:
    """Draw a disc into a frame of `draw_cells`.

    Args:
        frame: Frame to draw to.
        row: Row of the cell at the center of the disc; fractions lie between cells.
        column: Column of that cell.
        color: Color of the disc.
        radius: Radius in cells.
    """
    y, x = np.ogrid[: frame.shape[0], : frame.shape[1]]
    middle = (CELL_PIXELS - 1) / 2
    frame[np.hypot(y - middle - row * CELL_PIXELS, x - middle - column * CELL_PIXELS) < radius * CELL_PIXELS] = color
