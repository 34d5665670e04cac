"""The second environment of the tutorial "Write a kernel": a robot among shelves."""

import enum

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.kernels import Kernel, array

SIZE = 6
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left


class Cell(enum.IntEnum):
    FLOOR = 0
    SHELF = 1
    PARCEL = 2
    ROBOT = 3


class Warehouse(Kernel):
    observation_space = spaces.Dict({"floor": spaces.Box(0, 3, (SIZE, SIZE), np.uint8), "carrying": spaces.Discrete(2)})
    action_space = spaces.Discrete(4)
    max_episode_steps = 100
    info_fields = ("action_mask",)

    class State(Kernel.State):
        floor: NDArray[np.uint8] = array((SIZE, SIZE), np.uint8)
        row: int
        column: int
        is_carrying: bool
        action_mask: NDArray[np.int8] = array(4, np.int8)

    class Params(Kernel.Params):
        num_shelves: int = 5

    @staticmethod
    def reset(state, rng, params):
        order = rng.permutation(SIZE * SIZE)  # shelves, then the parcel, then the robot
        state.floor[:, :] = Cell.FLOOR
        for k in range(params.num_shelves):
            state.floor[order[k] // SIZE, order[k] % SIZE] = Cell.SHELF
        parcel, robot = order[params.num_shelves], order[params.num_shelves + 1]
        state.floor[parcel // SIZE, parcel % SIZE] = Cell.PARCEL
        state.row, state.column = robot // SIZE, robot % SIZE
        state.is_carrying = False
        allow(state)

    @staticmethod
    def step(state, action, rng, params):
        if state.action_mask[action] == 1:  # otherwise the robot stays
            state.row += MOVES[action][0]
            state.column += MOVES[action][1]
        if state.floor[state.row, state.column] == Cell.PARCEL:
            state.floor[state.row, state.column] = Cell.FLOOR
            state.is_carrying = True
        allow(state)
        is_home = state.is_carrying and state.row == 0 and state.column == 0
        return (1.0 if is_home else -0.01), is_home

    @staticmethod
    def observe(state, out):
        out["floor"][:, :] = state.floor
        out["floor"][state.row, state.column] = Cell.ROBOT
        out["carrying"] = state.is_carrying


def allow(state):
    for action in range(4):
        row, column = state.row + MOVES[action][0], state.column + MOVES[action][1]
        is_inside = 0 <= row < SIZE and 0 <= column < SIZE
        state.action_mask[action] = is_inside and state.floor[row, column] != Cell.SHELF
