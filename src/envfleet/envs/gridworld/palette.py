"""Colours of the grid world, and its frames for people."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.frames import CELL_PIXELS, draw_cells

COLORS: Final = ((236, 236, 230), (84, 88, 96), (226, 88, 34), (64, 168, 92))
"""Red, green and blue of floor, wall, lava and goal."""

AGENT_COLOR: Final = (40, 92, 200)


def draw(cells: NDArray[np.uint8], agent_row: int, agent_column: int) -> NDArray[np.uint8]:
    """Draw a frame, uint8 `(32 * height, 32 * width, 3)`: coloured cells, lines between them, the agent as a disc.

    Args:
        cells: uint8 `(height, width)`, of `layout`'s kinds.
        agent_row: Where the agent stands.
        agent_column: Likewise.
    """
    frame = draw_cells(np.array(COLORS, np.uint8)[cells])
    offset = np.arange(CELL_PIXELS) - (CELL_PIXELS - 1) / 2
    is_disc = np.hypot(offset[:, None], offset) < 0.36 * CELL_PIXELS
    top, left = agent_row * CELL_PIXELS, agent_column * CELL_PIXELS
    frame[top : top + CELL_PIXELS, left : left + CELL_PIXELS][is_disc] = AGENT_COLOR
    return frame
