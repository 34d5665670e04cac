"""Base of all MiniGrid kernels: cells, movement, the field of view, and frames."""

from __future__ import annotations

from typing import Any, ClassVar, Final, TypeVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.frames import AGENT_COLOR, COLORS, draw_cells, draw_disc
from envfleet.kernels import Kernel, array

LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(7)
RED, GREEN, BLUE, PURPLE, YELLOW, GRAY = range(6)

EMPTY: Final = 1
WALL: Final = 2
OPEN_DOOR: Final = 4
KEY: Final = 5
GOAL: Final = 8
LAVA: Final = 9
CLOSED_DOOR: Final = 10  # observed as a door of state 1
LOCKED_DOOR: Final = 11  # observed as a door of state 2
IN: Final = 16
"""A cell is its kind and `IN` times its colour: a green goal is `GOAL + IN * GREEN`. Nothing is 0."""

GRAY_WALL: Final = WALL + IN * GRAY
GREEN_GOAL: Final = GOAL + IN * GREEN

_KIND: Final = IN - 1  # bits of the kind
_COLOR: Final = 4  # place of the bits of the colour
_DX: Final = (1, 0, -1, 0)
_DY: Final = (0, 1, 0, -1)
_VIEW: Final = 7
_ALL_SEEN: Final = (1 << _VIEW) - 1
_PAINTS: Final = ((214, 64, 60), (64, 168, 92), (52, 104, 208), (140, 72, 196), (232, 196, 48), (128, 132, 140))
World = TypeVar("World", bound="MiniGrid")

_SQUARES: Final = {EMPTY: 0, KEY: 0, WALL: 1, LAVA: 2, GOAL: 3}  # places in `COLORS`


class MiniGrid(Kernel):
    """Base of the MiniGrid kernels, which draw layouts: actions, observation, rewards and ends of minigrid 3.0.0.

    Actions: 0 turns left, 1 turns right, 2 goes forward, 3 picks up, 4 drops, 5 opens or closes, 6 does nothing.
    Reward 0, or `1 - 0.9 * num_steps / max_steps` on the goal. Terminated on the goal and in lava, truncated after
    `max_steps`.

    Observation: uint8 `(7, 7, 3)`, the `image` of the original, as its `ImgObsWrapper` returns it: kind, colour and
    state of the cells that the agent sees. The agent is at `[3, 6]` and looks towards `[3, 0]`; its cell shows the
    object that it carries. Its `direction` (0 right, 1 down, 2 left, 3 up) is in the infos.
    """

    observation_space: ClassVar[spaces.Box] = spaces.Box(0, 255, (_VIEW, _VIEW, 3), np.uint8)
    action_space = spaces.Discrete(7)
    render_fps = 10
    info_fields = ("direction",)

    class State(Kernel.State):
        """Cells by row and column, where the agent is and looks, and what it carries: a cell, or 0."""

        cells: NDArray[np.uint8] = array((8, 8), np.uint8)
        x: int
        y: int
        direction: int
        carrying: int
        num_steps: int

    class Params(Kernel.Params):
        """The time limit, which rewards depend on."""

        max_steps: int = 100

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Params) -> tuple[float, bool, bool]:
        """Turn, go, or do something with the cell ahead."""
        state.num_steps += 1
        x, y = state.x + _DX[state.direction], state.y + _DY[state.direction]
        ahead = state.cells[y, x]
        kind = ahead % IN
        is_goal = (action == FORWARD) & (kind == GOAL)
        is_lava = (action == FORWARD) & (kind == LAVA)
        if action in (LEFT, RIGHT):
            state.direction = (state.direction + (1 if action == RIGHT else 3)) % 4
        elif action == FORWARD and (kind in (EMPTY, OPEN_DOOR) or is_goal or is_lava):
            state.x, state.y = x, y
        elif action == PICK_UP and kind == KEY and state.carrying == 0:
            state.carrying = ahead
            state.cells[y, x] = EMPTY
        elif action == DROP and kind == EMPTY and state.carrying != 0:
            state.cells[y, x] = state.carrying
            state.carrying = 0
        elif action == TOGGLE:
            state.cells[y, x] = _toggled(ahead, state.carrying)
        reward = 1 - 0.9 * (state.num_steps / params.max_steps) if is_goal else 0.0
        return reward, is_goal | is_lava, state.num_steps >= params.max_steps

    @staticmethod
    def observe(state: State, out: NDArray[np.uint8]) -> None:
        """Write what the agent sees; walls and closed doors hide what is behind them."""
        look(state, out, False)

    @staticmethod
    def render(state: State, params: Params) -> NDArray[Any]:
        """Draw the world from above, 32 pixels a cell, the agent as a disc with a nose."""
        kinds, colors = state.cells % IN, state.cells // IN
        squares = np.array(_PAINTS, np.uint8)[colors]
        for kind, place in _SQUARES.items():
            squares[kinds == kind] = COLORS[place]
        frame = draw_cells(squares)
        for y, x in np.argwhere(kinds == KEY):
            draw_disc(frame, y, x, _PAINTS[colors[y, x]], 0.2)
        for y, x in np.argwhere(kinds == OPEN_DOOR):
            draw_disc(frame, y, x, COLORS[0], 0.45)
        draw_disc(frame, state.y, state.x, AGENT_COLOR)
        nose_y, nose_x = state.y + 0.2 * _DY[state.direction], state.x + 0.2 * _DX[state.direction]
        carried = _PAINTS[state.carrying // IN] if state.carrying else COLORS[0]
        draw_disc(frame, nose_y, nose_x, carried, 0.12)
        return frame


def derive(name: str, base: type[World], size: int | None = None, /, **defaults: Any) -> type[World]:
    """Return a kernel with the rules of another, for cells of another size or with other defaults of parameters.

    Args:
        name: Name of the class, and of the variable in the module of `base` that it is assigned to, for pickle.
        base: The other kernel.
        size: Number of cells along each side, or `None` for that of `base`.
        **defaults: Defaults of parameters.
    """
    state = {} if size is None else {"cells": array((size, size), np.uint8)}
    fields = {"State": type("State", (base.State,), state), "Params": type("Params", (base.Params,), defaults)}
    return type(name, (base,), {"__module__": base.__module__, "__doc__": f"Variant of `{base.__name__}`.", **fields})


def _toggled(cell: int, carrying: int) -> int:
    """Return what a cell becomes: doors open and close, locked ones only open, with the key of their colour."""
    kind, color = cell % IN, cell // IN
    if kind == CLOSED_DOOR or (kind == LOCKED_DOOR and carrying == KEY + IN * color):
        return OPEN_DOOR + IN * color
    return CLOSED_DOOR + IN * color if kind == OPEN_DOOR else cell


def look(state: Any, out: NDArray[np.uint8], sees_through: bool) -> None:
    """Write the agent's view, row by row from its own to the farthest.

    Args:
        state: State of a `MiniGrid`.
        out: uint8 `(7, 7, 3)`, column and row of the view, written.
        sees_through: True if objects do not block the view.
    """
    height, width = state.cells.shape
    dx, dy = _DX[state.direction], _DY[state.direction]
    seen = _ALL_SEEN if sees_through else 1 << (_VIEW // 2)  # bit i: column i of this row
    for row in range(_VIEW - 1, -1, -1):
        far = _VIEW - 1 - row
        clear = 0
        for column in range(_VIEW):
            aside = column - _VIEW // 2
            x, y = state.x + dx * far - dy * aside, state.y + dy * far + dx * aside
            is_inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
            cell = state.cells[y, x] if is_inside else GRAY_WALL
            kind = cell & _KIND
            is_shut = kind >= CLOSED_DOOR
            clear |= (0 if is_shut | (kind == WALL) else 1) << column
            out[column, row, 0] = OPEN_DOOR if is_shut else kind
            out[column, row, 1] = cell >> _COLOR
            out[column, row, 2] = kind - LAVA if is_shut else 0
        if not sees_through:
            seen, seen_beyond = _spread(seen, clear)
            for column in range(_VIEW):
                if (seen >> column) & 1 == 0:
                    out[column, row, 0] = out[column, row, 1] = out[column, row, 2] = 0
            seen = seen_beyond
    out[_VIEW // 2, _VIEW - 1, 0] = EMPTY if state.carrying == 0 else state.carrying & _KIND
    out[_VIEW // 2, _VIEW - 1, 1] = state.carrying >> _COLOR
    out[_VIEW // 2, _VIEW - 1, 2] = 0


def _spread(seen: int, clear: int) -> tuple[int, int]:
    """Let sight spread over one row of the view, first to the right and then to the left, and to the row beyond.

    Args:
        seen: Bits of the columns that are seen from the row below.
        clear: Bits of those that do not hide what is behind them.

    Returns:
        Bits of the columns that are seen, and of those that are seen in the row beyond.
    """
    rightwards = seen & clear
    for _ in range(_VIEW - 2):
        rightwards |= (rightwards << 1) & clear
    rightwards &= _ALL_SEEN >> 1  # as in the original, the last column passes nothing on
    seen |= rightwards << 1
    leftwards = seen & clear
    for _ in range(_VIEW - 2):
        leftwards |= (leftwards >> 1) & clear
    leftwards &= _ALL_SEEN - 1
    return seen | leftwards >> 1, rightwards | rightwards << 1 | leftwards | leftwards >> 1


def begin(state: Any, edge: int) -> None:
    """Begin an episode in an empty world bordered by one kind of cell."""
    height, width = state.cells.shape
    for y in range(height):
        for x in range(width):
            is_edge = (x == 0) | (y == 0) | (x == width - 1) | (y == height - 1)
            state.cells[y, x] = edge if is_edge else EMPTY
    state.carrying = 0
    state.num_steps = 0


def find_empty(
    state: Any, rng: np.random.Generator, left: int, top: int, right: int, bottom: int
) -> tuple[np.int64, np.int64]:
    """Draw columns from left to right - 1 and rows from top to bottom - 1 until a cell is empty, without the agent."""
    while True:
        x, y = rng.integers(left, right), rng.integers(top, bottom)
        if state.cells[y, x] == EMPTY and not (x == state.x and y == state.y):
            return x, y


def place_agent(state: Any, rng: np.random.Generator, left: int, top: int, right: int, bottom: int) -> None:
    """Put the agent on an empty cell of a rectangle, as `find_empty` draws it, and draw where it looks."""
    state.x = state.y = -1
    x, y = find_empty(state, rng, left, top, right, bottom)
    state.x, state.y = x, y
    state.direction = rng.integers(0, 4)
