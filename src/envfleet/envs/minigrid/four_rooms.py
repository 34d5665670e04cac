"""FourRooms: find the goal in four rooms that gaps connect."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.minigrid.world import EMPTY, GRAY_WALL, GREEN_GOAL, MiniGrid, begin, find_empty, place_agent
from envfleet.kernels import array

_SIZE = 19


class FourRooms(MiniGrid):
    """Four rooms in 19 × 19 cells, with a gap in each of the walls between them; agent and goal are anywhere.

    MiniGrid's `MiniGrid-FourRooms-v0`.
    """

    class State(MiniGrid.State):
        """The state for this size."""

        cells: NDArray[np.uint8] = array((_SIZE, _SIZE), np.uint8)

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: MiniGrid.Params) -> None:
        """Draw the gaps of the upper left, upper right and lower left rooms, the agent and the goal."""
        begin(state, GRAY_WALL)
        middle = _SIZE // 2
        state.cells[:, middle] = GRAY_WALL
        state.cells[middle] = GRAY_WALL
        state.cells[rng.integers(1, middle), middle] = EMPTY
        state.cells[middle, rng.integers(1, middle)] = EMPTY
        state.cells[middle, rng.integers(middle + 1, 2 * middle)] = EMPTY
        state.cells[rng.integers(middle + 1, 2 * middle), middle] = EMPTY
        place_agent(state, rng, 0, 0, _SIZE, _SIZE)
        x, y = find_empty(state, rng, 0, 0, _SIZE, _SIZE)
        state.cells[y, x] = GREEN_GOAL
