"""Taxi: fetch a passenger at one of four places and drive to another."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.frames import draw_original
from envfleet.envs.toy_text.sampling import draw_equal
from envfleet.kernels import Kernel, array

_SIZE = 5
_IN_TAXI = 4  # as the passenger's place
_PLACE_ROWS = (0, 0, 4, 4)
_PLACE_COLUMNS = (0, 4, 0, 3)
_IS_OPEN = (  # to the east of each cell, for the taxi
    (True, False, True, True, False),
    (True, False, True, True, False),
    (True, True, True, True, False),
    (False, True, False, True, False),
    (False, True, False, True, False),
)


class Taxi(Kernel):
    """Gymnasium's Taxi-v3 as a kernel: the same spaces, draws, rewards, ends and infos.

    Observation: ((row × 5 + column) × 5 + passenger) × 4 + destination, where the passenger is at place 0 to 3 (red,
    green, yellow, blue) or 4, in the taxi. Actions: 0 south, 1 north, 2 east, 3 west, 4 pick up, 5 drop off. Reward -1
    a step, -10 for a pick-up or drop-off that is not possible, 20 at the end. Terminated when the passenger is dropped
    off at the destination.

    Infos: `action_mask`, int8 `(6,)`, 1 for actions that change something; `prob`, the probability of the move.

    Source: T. Dietterich, "Hierarchical Reinforcement Learning with the MAXQ Value Function Decomposition" (2000).
    """

    observation_space = spaces.Discrete(500)
    action_space = spaces.Discrete(6)
    max_episode_steps: ClassVar[int | None] = 200
    info_fields = ("prob", "action_mask")
    render_fps = 4

    class State(Kernel.State):
        """Positions of taxi, passenger and destination; remaining events; direction of the taxi for frames."""

        row: int
        column: int
        passenger: int
        destination: int
        is_fickle: bool  # whether the passenger will choose another destination on the first move
        orientation: int
        action_mask: NDArray[np.int8] = array(6, np.int8)
        prob: float

    class Params(Kernel.Params):
        """Gymnasium's arguments of the same names."""

        is_rainy: bool = False
        fickle_passenger: bool = False

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        """Begin anywhere, with the passenger at one place and going to another."""
        begin(state, rng, params.fickle_passenger, 0.3)

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Params) -> tuple[float, bool]:
        """Drive one cell, or let the passenger in or out."""
        draw = rng.random()
        state.prob = 1.0
        is_moved = False
        if action < 4:
            is_moved = _drive(state, action, draw, params.is_rainy)
        return act(state, action, rng, is_moved)

    @staticmethod
    def observe(state: State, out: NDArray[np.int64]) -> None:
        """Write the number of the state."""
        out[()] = ((state.row * _SIZE + state.column) * 5 + state.passenger) * 4 + state.destination

    @staticmethod
    def render(state: State, params: Params) -> NDArray[Any]:
        """Draw Gymnasium's frame, `(350, 550, 3)` in 1.2 and `(456, 536, 3)` in 1.4."""
        from gymnasium.envs.toy_text.taxi import WINDOW_SIZE, TaxiEnv

        number = ((state.row * _SIZE + state.column) * 5 + state.passenger) * 4 + state.destination
        return draw_original(
            TaxiEnv,
            WINDOW_SIZE,
            surface="window",
            s=int(number),
            lastaction=None,
            taxi_orientation=int(state.orientation),
        )


def begin(state: Any, rng: np.random.Generator, can_be_fickle: bool, probability: float) -> None:
    """Begin anywhere, with the passenger at one place and going to another."""
    start = draw_equal(rng, _SIZE * _SIZE * 12)
    passenger = start % 12 // 3
    other = start % 3
    state.row = start // 12 // _SIZE
    state.column = start // 12 % _SIZE
    state.passenger = passenger
    state.destination = other + (other >= passenger)
    state.is_fickle = rng.random() < probability if can_be_fickle else False
    state.orientation = 0
    state.prob = 1.0
    _write_mask(state)


def act(state: Any, action: int, rng: np.random.Generator, is_moved: bool) -> tuple[float, bool]:
    """Let the passenger in or out, or change the destination on the way; return the reward and whether it ended."""
    reward, terminated = -1.0, False
    place = _find_place(state.row, state.column)
    was_inside = state.passenger == _IN_TAXI
    if action < 4:
        if state.is_fickle and was_inside and is_moved:
            state.is_fickle = False
            other = rng.integers(3)
            state.destination = int(other + (other >= state.destination))
    elif action == 4 and place >= 0 and state.passenger == place:
        state.passenger = _IN_TAXI
    elif action == 5 and place >= 0 and was_inside:
        state.passenger = place
        terminated = place == state.destination
        reward = 20.0 if terminated else -1.0
    else:
        reward = -10.0
    _write_mask(state)
    return reward, terminated


def _find_place(row: int, column: int) -> int:
    """Return which of the four places this is, or -1."""
    landmark = -1
    for place in range(4):
        if row == _PLACE_ROWS[place] and column == _PLACE_COLUMNS[place]:
            landmark = place
    return landmark


def _is_open(row: int, column: int, right: int) -> bool:
    """Return whether nothing is in the way from a cell to the east (`right` 1) or the west (-1)."""
    if right > 0:
        return _IS_OPEN[row][column]
    return column > 0 and _IS_OPEN[row][column - 1]


def _drive(state: Taxi.State, action: int, draw: float, is_rainy: bool) -> bool:
    """Move the taxi; in the rain it goes astray one time in five. Returns whether it moved."""
    row, column = state.row, state.column
    down = (action == 0) * 1 - (action == 1) * 1
    right = (action == 2) * 1 - (action == 3) * 1
    state.orientation = action
    is_blocked = right != 0 and not _is_open(row, column, right)
    # Compared with 0.8 + 0.1, the rounded sum, as in Gymnasium.
    turn = (0 if draw < 0.8 else (-1 if draw < 0.8 + 0.1 else 1)) if is_rainy else 0
    if is_rainy:
        state.prob = 0.8 if turn == 0 else 0.1
    if turn == 0:
        new_row = min(max(row + down, 0), _SIZE - 1)
        new_column = column if is_blocked else column + right
    elif down != 0:
        new_row = row
        new_column = column + turn if _is_open(row, column, turn) else column
    else:
        # To the side of east and west: -1 is down, 1 is up. Gymnasium looks there for a way on to the east or west.
        new_row = min(max(row - turn, 0), _SIZE - 1)
        new_row = new_row if not is_blocked and _is_open(new_row, column, -turn) else row
        new_column = column
    state.row = new_row
    state.column = new_column
    return (new_row != row) | (new_column != column)


def _write_mask(state: Taxi.State) -> None:
    """Write which actions change something."""
    row, column = state.row, state.column
    place = _find_place(row, column)
    state.action_mask[0] = row < _SIZE - 1
    state.action_mask[1] = row > 0
    state.action_mask[2] = _is_open(row, column, 1)
    state.action_mask[3] = _is_open(row, column, -1)
    state.action_mask[4] = place >= 0 and state.passenger == place
    state.action_mask[5] = place >= 0 and state.passenger == _IN_TAXI
