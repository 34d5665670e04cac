"""Empty: walk to the goal in the other corner of a room."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.minigrid.world import GRAY_WALL, GREEN_GOAL, MiniGrid, begin, derive, look, place_agent


class Empty(MiniGrid):
    """An empty room of 8 × 8 cells, walls included, with the goal in the lower right corner; nothing hides anything.

    MiniGrid's `MiniGrid-Empty-8x8-v0`. The agent starts in the upper left corner and looks right, or anywhere.
    """

    class Params(MiniGrid.Params):
        """The time limit, and whether start and direction are drawn."""

        max_steps: int = 256
        has_random_start: bool = False

    @staticmethod
    def reset(state: MiniGrid.State, rng: np.random.Generator, params: Params) -> None:
        """Place the agent."""
        height, width = state.cells.shape
        begin(state, GRAY_WALL)
        state.cells[height - 2, width - 2] = GREEN_GOAL
        state.x, state.y, state.direction = 1, 1, 0
        if params.has_random_start:
            place_agent(state, rng, 0, 0, width, height)

    @staticmethod
    def observe(state: MiniGrid.State, out: NDArray[np.uint8]) -> None:
        """Write all that is within the view."""
        look(state, out, True)


Empty5x5 = derive("Empty5x5", Empty, 5, max_steps=100)
EmptyRandom5x5 = derive("EmptyRandom5x5", Empty5x5, has_random_start=True)
Empty6x6 = derive("Empty6x6", Empty, 6, max_steps=144)
EmptyRandom6x6 = derive("EmptyRandom6x6", Empty6x6, has_random_start=True)
Empty16x16 = derive("Empty16x16", Empty, 16, max_steps=1024)
