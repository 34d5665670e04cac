"""Empty: walk to the goal in the other corner of a room."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.minigrid.world import GRAY_WALL, GREEN_GOAL, MiniGrid, begin, look, place_agent
from envfleet.kernels import array


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


class Empty5x5(Empty):
    """`MiniGrid-Empty-5x5-v0`."""

    class State(MiniGrid.State):
        """The state for this size."""

        cells: NDArray[np.uint8] = array((5, 5), np.uint8)

    class Params(Empty.Params):
        """Those of `Empty`."""

        max_steps: int = 100


class EmptyRandom5x5(Empty5x5):
    """`MiniGrid-Empty-Random-5x5-v0`: start and direction are drawn."""

    class Params(Empty5x5.Params):
        """Those of `Empty`."""

        has_random_start: bool = True


class Empty6x6(Empty):
    """`MiniGrid-Empty-6x6-v0`."""

    class State(MiniGrid.State):
        """The state for this size."""

        cells: NDArray[np.uint8] = array((6, 6), np.uint8)

    class Params(Empty.Params):
        """Those of `Empty`."""

        max_steps: int = 144


class EmptyRandom6x6(Empty6x6):
    """`MiniGrid-Empty-Random-6x6-v0`: start and direction are drawn."""

    class Params(Empty6x6.Params):
        """Those of `Empty`."""

        has_random_start: bool = True


class Empty16x16(Empty):
    """`MiniGrid-Empty-16x16-v0`."""

    class State(MiniGrid.State):
        """The state for this size."""

        cells: NDArray[np.uint8] = array((16, 16), np.uint8)

    class Params(Empty.Params):
        """Those of `Empty`."""

        max_steps: int = 1024
