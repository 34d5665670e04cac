"""DoorKey: fetch the key, unlock the door, and walk to the goal behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.minigrid.world import (
    GRAY_WALL,
    GREEN_GOAL,
    IN,
    KEY,
    LOCKED_DOOR,
    YELLOW,
    MiniGrid,
    begin,
    find_empty,
    place_agent,
)
from envfleet.kernels import array


class DoorKey(MiniGrid):
    """A room of 8 × 8 cells, walls included, that a wall with a locked door parts into two, with the goal in one.

    MiniGrid's `MiniGrid-DoorKey-8x8-v0`.
    """

    class Params(MiniGrid.Params):
        """The time limit."""

        max_steps: int = 640

    @staticmethod
    def reset(state: MiniGrid.State, rng: np.random.Generator, params: Params) -> None:
        """Draw the wall, the agent, the door and the key, in this order."""
        height, width = state.cells.shape
        begin(state, GRAY_WALL)
        state.cells[height - 2, width - 2] = GREEN_GOAL
        wall_x: Any = rng.integers(2, width - 2)
        state.cells[:, wall_x] = GRAY_WALL
        place_agent(state, rng, 0, 0, wall_x, height)
        state.cells[rng.integers(1, height - 2), wall_x] = LOCKED_DOOR + IN * YELLOW
        key_x, key_y = find_empty(state, rng, 0, 0, wall_x, height)
        state.cells[key_y, key_x] = KEY + IN * YELLOW


class DoorKey5x5(DoorKey):
    """`MiniGrid-DoorKey-5x5-v0`."""

    class State(MiniGrid.State):
        """The state for this size."""

        cells: NDArray[np.uint8] = array((5, 5), np.uint8)

    class Params(DoorKey.Params):
        """The time limit."""

        max_steps: int = 250


class DoorKey6x6(DoorKey):
    """`MiniGrid-DoorKey-6x6-v0`."""

    class State(MiniGrid.State):
        """The state for this size."""

        cells: NDArray[np.uint8] = array((6, 6), np.uint8)

    class Params(DoorKey.Params):
        """The time limit."""

        max_steps: int = 360


class DoorKey16x16(DoorKey):
    """`MiniGrid-DoorKey-16x16-v0`."""

    class State(MiniGrid.State):
        """The state for this size."""

        cells: NDArray[np.uint8] = array((16, 16), np.uint8)

    class Params(DoorKey.Params):
        """The time limit."""

        max_steps: int = 2560
