"""Grid worlds: walk to the goal, around walls and lava, in a layout that is drawn in every episode."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.frames import AGENT_COLOR, COLORS, draw_cells, draw_disc
from envfleet.kernels import Kernel, array

FLOOR: Final = 0
WALL: Final = 1
LAVA: Final = 2
GOAL: Final = 3


class GridWorld(Kernel):
    """Walk over a grid of 8 × 8 cells, observed as one plane of zeros and ones per kind of object.

    Actions: 0 up, 1 right, 2 down, 3 left; walls and the edge stop the agent. Terminated on the goal and in lava. Every
    layout is solvable. Without walls and lava the best return is `goal_reward + (d - 1) * step_reward` for a goal
    that is d rows and columns away.

    Observation: uint8 `(height, width, 4)`, planes agent, goal, walls, lava.

    For a world of another size, subclass it with other shapes:

        >>> class LargeGridWorld(GridWorld):
        ...     observation_space = spaces.Box(0, 1, (16, 24, 4), np.uint8)
        ...     max_episode_steps = 500
        ...     class State(GridWorld.State):
        ...         cells: NDArray[np.uint8] = array((16, 24), np.uint8)
    """

    observation_space: ClassVar[spaces.Box] = spaces.Box(0, 1, (8, 8, 4), np.uint8)
    action_space = spaces.Discrete(4)
    max_episode_steps: ClassVar[int | None] = 100
    render_fps = 10

    class State(Kernel.State):
        """Content of each cell (`FLOOR` and so on), and the agent's row and column."""

        cells: NDArray[np.uint8] = array((8, 8), np.uint8)
        row: np.int32
        column: np.int32

    class Params(Kernel.Params):
        """Probabilities of a cell's content, and rewards of ordinary and final steps."""

        wall_fraction: float = 0.25
        lava_fraction: float = 0.1
        step_reward: float = -0.01
        goal_reward: float = 1.0
        lava_reward: float = -1.0

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        """Draw start, another cell as goal, and the layout."""
        height, width = state.cells.shape
        start = rng.integers(height * width)
        other = rng.integers(height * width - 1)
        goal = other + 1 if other >= start else other
        lay_out(state.cells, rng, start, goal, params.wall_fraction, params.lava_fraction)
        state.row = np.int32(start // width)
        state.column = np.int32(start % width)

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Params) -> tuple[float, bool]:
        """Walk one cell."""
        height, width = state.cells.shape
        down = 1 if action == 2 else (-1 if action == 0 else 0)
        right = 1 if action == 1 else (-1 if action == 3 else 0)
        row = min(max(state.row + down, 0), height - 1)
        column = min(max(state.column + right, 0), width - 1)
        if state.cells[row, column] != WALL:
            state.row = np.int32(row)
            state.column = np.int32(column)
        cell = state.cells[state.row, state.column]
        ending = params.goal_reward if cell == GOAL else params.lava_reward
        terminated = (cell == GOAL) | (cell == LAVA)
        return ending if terminated else params.step_reward, terminated

    @staticmethod
    def observe(state: State, out: NDArray[np.uint8]) -> None:
        """Write the planes."""
        height, width = state.cells.shape
        for row in range(height):
            for column in range(width):
                cell = state.cells[row, column]
                out[row, column, 0] = 0
                out[row, column, 1] = cell == GOAL
                out[row, column, 2] = cell == WALL
                out[row, column, 3] = cell == LAVA
        out[state.row, state.column, 0] = 1

    @staticmethod
    def render(state: State, params: Params) -> NDArray[Any]:
        """Draw the world from above, 32 pixels per cell."""
        frame = draw_cells(np.array(COLORS, np.uint8)[state.cells])
        draw_disc(frame, int(state.row), int(state.column), AGENT_COLOR)
        return frame


class GridWorldPixels(GridWorld):
    """`GridWorld` observed as an image: 8 × 8 pixels per cell, in the colors of rendered frames.

    Observation: uint8 `(64, 64, 3)`. A subclass may choose any image size that is a multiple of the grid's.
    """

    observation_space: ClassVar[spaces.Box] = spaces.Box(0, 255, (64, 64, 3), np.uint8)

    @staticmethod
    def observe(state: GridWorld.State, out: NDArray[np.uint8]) -> None:
        """Write the image: one line of pixels for each row of cells, and the lines below as copies."""
        height, width = state.cells.shape
        tall, wide, line_bytes = out.shape[0] // height, out.shape[1] // width, out.shape[1] * 3
        flat = out.flat
        for row in range(height):
            for column in range(width):
                is_agent = (row == state.row) & (column == state.column)
                red, green, blue = AGENT_COLOR if is_agent else COLORS[state.cells[row, column]]
                for x in range(column * wide, (column + 1) * wide):
                    out[row * tall, x, 0] = red
                    out[row * tall, x, 1] = green
                    out[row * tall, x, 2] = blue
            # Indices without a sign cannot count from the end, so that the copying loop vectorises.
            first = np.uint64(row * tall * line_bytes)
            for y in range(1, tall):
                below = first + np.uint64(y * line_bytes)
                for k in range(np.uint64(line_bytes)):
                    flat[below + k] = flat[first + k]


def lay_out(
    cells: NDArray[np.uint8],
    rng: np.random.Generator,
    start: int,
    goal: int,
    wall_fraction: float,
    lava_fraction: float,
) -> None:
    """Fill the cells.

    A path from start to goal through a third, random cell is kept free, so that every layout is solvable; every other
    cell is independently a wall, lava or floor.

    Args:
        cells: Cells to fill, uint8 `(height, width)`.
        rng: Generator; draws once per cell, and once per step of the path.
        start: Start cell of the agent, row × width + column.
        goal: Goal cell `(row, column)`, different from the start.
        wall_fraction: Probability of a wall.
        lava_fraction: Probability of lava.
    """
    height, width = cells.shape
    for row in range(height):
        for column in range(width):
            draw = rng.random()
            is_lava = draw < wall_fraction + lava_fraction
            cells[row, column] = WALL if draw < wall_fraction else (LAVA if is_lava else FLOOR)
    between = rng.integers(height * width)
    for leg in range(2):  # one call rather than two, which take longer to compile
        _clear_way(cells, rng, between if leg else start, goal if leg else between)
    cells[goal // width, goal % width] = GOAL


def _clear_way(cells: NDArray[np.uint8], rng: np.random.Generator, start: int, end: Any) -> None:
    """Make a random staircase between two cells free, including its ends; all staircases are equally likely."""
    width = cells.shape[1]
    row, column = start // width, start % width
    rows, columns = end // width - row, end % width - column
    cells[row, column] = FLOOR
    while rows != 0 or columns != 0:
        if rng.integers(abs(rows) + abs(columns)) < abs(rows):
            step = 1 if rows > 0 else -1
            row, rows = row + step, rows - step
        else:
            step = 1 if columns > 0 else -1
            column, columns = column + step, columns - step
        cells[row, column] = FLOOR
