"""Lists of things that cross the board, in arrays of a state, in the order of their arrival.

A list is int8 `(capacity + 1, width)`: `things[0, 0]` is how many there are, and row 1 the first. Columns are those of
the constants; a list may lack the last ones.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.minatar.game import SIZE

X: Final = 0
Y: Final = 1
HEADING: Final = 2
"""1 if it moves to the right, 0 if to the left."""

WAIT: Final = 3
"""Steps until it moves."""

SHOT: Final = 4
"""Steps until it shoots."""


def add(things: NDArray[np.int8], x: int, y: int, is_right: bool, wait: int = 0, shot: int = 0) -> None:
    """Append a thing, unless the list is full."""
    num_rows, width = things.shape
    index = things[0, 0] + 1
    if index == num_rows:
        return
    things[0, 0] = index
    things[index, X] = x
    things[index, Y] = y
    things[index, HEADING] = is_right
    if width > WAIT:
        things[index, WAIT] = wait
    if width > SHOT:
        things[index, SHOT] = shot


def remove(things: NDArray[np.int8], index: int) -> None:
    """Remove the first thing that equals the one at `index`.

    So does `list.remove` in the original, where of two fish in one cell the other one may go.
    """
    width = things.shape[1]
    first = 1
    while first < index:
        num_equal = 0
        for k in range(width):
            num_equal += things[first, k] == things[index, k]
        if num_equal == width:
            break
        first += 1
    things[0, 0] -= 1
    for row in range(first, things[0, 0] + 1):
        for k in range(width):
            things[row, k] = things[row + 1, k]


def find(things: NDArray[np.int8], x: int, y: int) -> int:
    """Return the index of the first thing in a cell, or 0."""
    for index in range(1, things[0, 0] + 1):
        if things[index, X] == x and things[index, Y] == y:
            return index
    return 0


def has_oncoming(things: NDArray[np.int8], y: int, is_right: bool) -> bool:
    """Return whether something in a row moves in the other direction."""
    is_met = False
    for index in range(1, things[0, 0] + 1):
        is_met = is_met | ((things[index, Y] == y) & ((things[index, HEADING] != 0) != is_right))
    return is_met


def advance(things: NDArray[np.int8], index: int) -> bool:
    """Move a thing by one cell, and return whether it is off the board then."""
    things[index, X] += 1 if things[index, HEADING] else -1
    return bool((things[index, X] < 0) | (things[index, X] >= SIZE))


def show(things: NDArray[np.int8], out: NDArray[np.bool_], plane: int, trail_plane: int) -> None:
    """Write things into one plane, and the cells behind them into another, which may be the same for none."""
    for index in range(1, things[0, 0] + 1):
        x, y = things[index, X], things[index, Y]
        out[y, x, plane] = True
        behind = x - 1 if things[index, HEADING] else x + 1
        if trail_plane != plane and 0 <= behind < SIZE:
            out[y, behind, trail_plane] = True
