"""Colours of grid worlds and boards, and their frames for people."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Color = tuple[int, int, int]

COLORS: Final[tuple[Color, ...]] = ((236, 236, 230), (84, 88, 96), (226, 88, 34), (64, 168, 92))
"""Red, green and blue of floor, wall, lava and goal."""

AGENT_COLOR: Final[Color] = (40, 92, 200)
_GRID_LINE = (210, 210, 204)
_CELL_PIXELS = 32


def draw_squares(colors: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Draw coloured squares with lines between them.

    Args:
        colors: uint8 `(height, width, 3)`, of each cell.

    Returns:
        A frame, uint8 `(32 * height, 32 * width, 3)`.
    """
    frame = colors.repeat(_CELL_PIXELS, axis=0).repeat(_CELL_PIXELS, axis=1)
    frame[::_CELL_PIXELS] = frame[:, ::_CELL_PIXELS] = _GRID_LINE
    return frame


def draw_disc(frame: NDArray[np.uint8], row: float, column: float, color: Color, radius: float = 0.36) -> None:
    """Draw a disc into a frame of `draw_squares`.

    Args:
        frame: Written.
        row: Of the cell in whose middle the disc is; fractions lie between cells.
        column: Likewise.
        color: Red, green and blue.
        radius: In cells.
    """
    y, x = np.ogrid[: frame.shape[0], : frame.shape[1]]
    middle = (_CELL_PIXELS - 1) / 2
    frame[np.hypot(y - middle - row * _CELL_PIXELS, x - middle - column * _CELL_PIXELS) < radius * _CELL_PIXELS] = color
