"""Layouts of the grid world: what lies in each cell, drawn anew for every episode and always solvable."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FLOOR: Final = 0
WALL: Final = 1
LAVA: Final = 2
GOAL: Final = 3


def lay_out(
    cells: NDArray[np.uint8],
    rng: np.random.Generator,
    start: int,
    goal: int,
    wall_fraction: float,
    lava_fraction: float,
) -> None:
    """Fill the cells.

    A way from start to goal by a third, random cell is kept free, so that every layout can be solved; in all others lie
    wall, lava or floor, each cell independently.

    Args:
        cells: uint8 `(height, width)`, written.
        rng: Draws once per cell, and once per step of the way.
        start: Where the agent begins, row × width + column.
        goal: Where it shall go, likewise; another cell.
        wall_fraction: Probability of a wall.
        lava_fraction: Probability of lava.
    """
    height, width = cells.shape
    for row in range(height):
        for column in range(width):
            draw = rng.random()
            is_lava = draw < wall_fraction + lava_fraction
            cells[row, column] = WALL if draw < wall_fraction else (LAVA if is_lava else FLOOR)
    between = rng.integers(height * width)
    for leg in range(2):  # one call rather than two, which take longer to compile
        _clear_way(cells, rng, between if leg else start, goal if leg else between)
    cells[goal // width, goal % width] = GOAL


def _clear_way(cells: NDArray[np.uint8], rng: np.random.Generator, start: int, end: Any) -> None:
    """Make floor of a random staircase between two cells, ends included; all staircases are equally likely."""
    width = cells.shape[1]
    row, column = start // width, start % width
    rows, columns = end // width - row, end % width - column
    cells[row, column] = FLOOR
    while rows != 0 or columns != 0:
        if rng.integers(abs(rows) + abs(columns)) < abs(rows):
            step = 1 if rows > 0 else -1
            row, rows = row + step, rows - step
        else:
            step = 1 if columns > 0 else -1
            column, columns = column + step, columns - step
        cells[row, column] = FLOOR
