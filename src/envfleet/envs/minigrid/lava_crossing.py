"""LavaCrossing: walk to the goal in the other corner through gaps in rivers of lava."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.minigrid.world import EMPTY, GRAY_WALL, GREEN_GOAL, LAVA, MiniGrid, begin, derive
from envfleet.kernels import array


class LavaCrossing(MiniGrid):
    """A room of 9 × 9 cells, walls included, with the goal behind a river of lava, or several that cross.

    MiniGrid's `MiniGrid-LavaCrossingS9N1-v0`; a subclass of another odd size has `order` of the size less 3. With
    `num_crossings=0` creates no river.
    """

    class State(MiniGrid.State):
        """As of `MiniGrid`, and room for what is shuffled: rivers, then the directions of a way."""

        cells: NDArray[np.uint8] = array((9, 9), np.uint8)
        order: NDArray[np.uint8] = array(6, np.uint8)

    class Params(MiniGrid.Params):
        """The time limit, and the number of rivers; there are at most as many as `order` is long."""

        max_steps: int = 324
        num_crossings: int = 1

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        """Draw rivers among all columns and rows with even numbers, and a gap in each along a way to the goal."""
        size = len(state.cells)
        begin(state, GRAY_WALL)
        state.x, state.y, state.direction = 1, 1, 0
        state.cells[size - 2, size - 2] = GREEN_GOAL
        for k in range(len(state.order)):
            state.order[k] = k
        rng.shuffle(state.order)
        num_rivers = min(params.num_crossings, len(state.order))
        columns, rows = _flood(state, num_rivers)
        num_columns = 0
        for at in range(size):
            num_columns += (columns >> at) & 1
        for k in range(num_rivers):
            state.order[k] = 0 if k < num_columns else 1
        rng.shuffle(state.order[:num_rivers])
        left = top = 0
        for k in range(num_rivers):
            right, bottom = _next_river(columns, left, size), _next_river(rows, top, size)
            if state.order[k] == 0:
                state.cells[rng.integers(top + 1, bottom), right] = EMPTY
                left = right
            else:
                state.cells[bottom, rng.integers(left + 1, right)] = EMPTY
                top = bottom


LavaCrossingS9N2 = derive("LavaCrossingS9N2", LavaCrossing, num_crossings=2)
LavaCrossingS9N3 = derive("LavaCrossingS9N3", LavaCrossing, num_crossings=3)


class LavaCrossingS11N5(LavaCrossing):
    """`MiniGrid-LavaCrossingS11N5-v0`."""

    class State(LavaCrossing.State):
        """The state for this size."""

        cells: NDArray[np.uint8] = array((11, 11), np.uint8)
        order: NDArray[np.uint8] = array(8, np.uint8)

    class Params(LavaCrossing.Params):
        """Those of `LavaCrossing`."""

        max_steps: int = 484
        num_crossings: int = 5


def _flood(state: LavaCrossing.State, num_rivers: int) -> tuple[int, int]:
    """Lay the first rivers in `order`: columns 2, 4, …, then rows; returns bits of the columns, and of the rows."""
    size = len(state.cells)
    half = len(state.order) // 2
    columns = rows = 0
    for k in range(num_rivers):
        is_column = state.order[k] < half
        at = 2 + 2 * (state.order[k] % half)
        columns |= (1 if is_column else 0) << at
        rows |= (0 if is_column else 1) << at
        for along in range(1, size - 1):
            state.cells[along if is_column else at, at if is_column else along] = LAVA
    return columns, rows


def _next_river(rivers: int, after: int, size: int) -> int:
    """Return the first place of a river after another, or the edge."""
    at = after + 1
    while at < size - 1 and (rivers >> at) & 1 == 0:
        at += 1
    return at
