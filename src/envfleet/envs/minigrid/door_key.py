"""DoorKey: fetch the key, unlock the door, and walk to the goal behind it."""

from __future__ import annotations

from typing import Any

import numpy as np

from envfleet.envs.minigrid.world import (
    GRAY_WALL,
    GREEN_GOAL,
    IN,
    KEY,
    LOCKED_DOOR,
    YELLOW,
    MiniGrid,
    begin,
    derive,
    find_empty,
    place_agent,
)


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


DoorKey5x5 = derive("DoorKey5x5", DoorKey, 5, max_steps=250)
DoorKey6x6 = derive("DoorKey6x6", DoorKey, 6, max_steps=360)
DoorKey16x16 = derive("DoorKey16x16", DoorKey, 16, max_steps=2560)
