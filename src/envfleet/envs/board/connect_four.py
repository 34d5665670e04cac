"""Connect Four: four discs in a row, for two players in turn or for one player against a random opponent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.frames import AGENT_COLOR, COLORS, draw_cells, draw_disc
from envfleet.errors import InvalidArgument
from envfleet.kernels import Kernel, array

ROWS, COLUMNS = 6, 7
_DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))
_DISC_COLORS = (AGENT_COLOR, COLORS[2])


class ConnectFour(Kernel):
    """Two-player Connect Four with the rules of pgx 2.6.0.

    Action: the column into which the current player, `player` in the infos (0 or 1), drops a disc; player one begins.
    `action_mask` in the infos marks the columns that are not full. The reward is that of player one, 1 for a win and -1
    for a loss; `reward_two` in the infos is that of player two. Terminated by four discs in a row or a full board.

    A player that chooses a full column loses, and the board stays as it is. On the last step of a game, all columns are
    in the mask.

    Observation: bool `(6, 7, 2)`, row 0 at the top: discs of the current player, and of the other one.
    """

    observation_space: ClassVar[spaces.Box] = spaces.Box(0, 1, (ROWS, COLUMNS, 2), np.bool_)  # type: ignore[arg-type]  # as it may be
    action_space = spaces.Discrete(COLUMNS)
    render_fps = 2
    info_fields: ClassVar[tuple[str, ...]] = ("action_mask", "player", "reward_two")

    class State(Kernel.State):
        """The board, 0 or the number of a disc's player, 1 or 2; and the current player, 0 or 1."""

        cells: NDArray[np.uint8] = array((ROWS, COLUMNS), np.uint8)
        action_mask: NDArray[np.int8] = array(COLUMNS, np.int8)
        player: int
        reward_two: float

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Kernel.Params) -> None:
        """Clear the board."""
        _clear(state)

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Kernel.Params) -> tuple[float, bool]:
        """Drop a disc."""
        is_one = state.player == 0
        reward, terminated = _move(state, action)
        state.reward_two = -reward if is_one else reward
        return -state.reward_two, terminated

    @staticmethod
    def observe(state: State, out: NDArray[np.bool_]) -> None:
        """Write the discs from the view of the current player."""
        _see(state, out, state.player)

    @staticmethod
    def render(state: State, params: Kernel.Params) -> NDArray[Any]:
        """Draw the board, `(192, 224, 3)`, player one in blue."""
        frame = draw_cells(np.full((ROWS, COLUMNS, 3), COLORS[0], np.uint8))
        for row, column in np.argwhere(state.cells > 0):
            draw_disc(frame, row, column, _DISC_COLORS[state.cells[row, column] - 1])
        return frame


class ConnectFourOne(ConnectFour):
    """`ConnectFour` for one agent against a player that chooses a legal column at random.

    Observation and reward are those of the agent; a step ends after the other player's move.
    """

    info_fields = ("action_mask",)

    class State(ConnectFour.State):
        """State of `ConnectFour`, and the agent's player."""

        agent: int

    class Params(Kernel.Params):
        """Player that begins: 1 the agent, 2 the opponent, 0 a random one in each game."""

        starter: int = 0

    @classmethod
    def check_params(cls, values: Mapping[str, NDArray[Any]]) -> None:
        """Validate `starter`."""
        starters = values.get("starter", np.zeros(1))
        if not np.isin(starters, (0, 1, 2)).all():
            raise InvalidArgument(
                f"starter is {starters.tolist()}, expected 0 to 2: 1 is the agent, 2 the opponent, 0 a random player"
            )

    @staticmethod
    def reset(state: Any, rng: np.random.Generator, params: Any) -> None:
        """Clear the board; if the opponent begins, make its first move."""
        _clear(state)
        is_first = params.starter == 1
        if params.starter == 0:
            is_first = rng.integers(0, 2) == 0
        state.agent = 0 if is_first else 1
        if not is_first:
            _move(state, _draw_column(state, rng))

    @staticmethod
    def step(state: Any, action: int, rng: np.random.Generator, params: Any) -> tuple[float, bool]:
        """Drop the agent's disc, then the opponent's."""
        reward, terminated = _move(state, action)
        if not terminated:
            lost, terminated = _move(state, _draw_column(state, rng))
            reward = -lost
        return reward, terminated

    @staticmethod
    def observe(state: Any, out: NDArray[np.bool_]) -> None:
        """Write the discs from the view of the agent."""
        _see(state, out, state.agent)


def _clear(state: Any) -> None:
    state.cells[:] = 0
    state.action_mask[:] = 1
    state.player = 0
    state.reward_two = 0.0


def _move(state: Any, column: int) -> tuple[float, bool]:
    """Drop the disc of the current player; return that player's reward, and whether the game is over."""
    disc = state.player + 1
    state.player = 1 - state.player
    reward, is_over = -1.0, True
    if state.action_mask[column] != 0:
        row = ROWS - 1
        while state.cells[row, column] != 0:
            row -= 1
        state.cells[row, column] = disc
        state.action_mask[column] = row > 0
        has_won = _has_four(state.cells, row, column)
        reward = 1.0 if has_won else 0.0
        is_over = has_won or int(state.action_mask.sum()) == 0
    if is_over:
        state.action_mask[:] = 1
    return reward, is_over


def _has_four(cells: NDArray[np.uint8], row: int, column: int) -> bool:
    """Return whether the disc in a cell is one of four in a row."""
    disc = cells[row, column]
    for down, right in _DIRECTIONS:
        count = 1
        for sign in (-1, 1):
            y, x = row + sign * down, column + sign * right
            while 0 <= y < ROWS and 0 <= x < COLUMNS and cells[y, x] == disc:
                count += 1
                y, x = y + sign * down, x + sign * right
        if count >= 4:
            return True
    return False


def _draw_column(state: Any, rng: np.random.Generator) -> int:
    """Draw one of the columns that are not full."""
    rank: Any = rng.integers(0, int(state.action_mask.sum()))
    column = 0
    while rank > 0 or state.action_mask[column] == 0:
        rank -= state.action_mask[column]
        column += 1
    return column


def _see(state: Any, out: NDArray[np.bool_], player: int) -> None:
    for row in range(ROWS):
        for column in range(COLUMNS):
            disc = state.cells[row, column]
            out[row, column, 0] = disc == player + 1
            out[row, column, 1] = disc == 2 - player
