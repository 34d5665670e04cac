"""2048: slide tiles, and merge equal ones."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.frames import COLORS, draw_cells
from envfleet.kernels import Kernel, array

_NUM_CELLS = 16
_NUM_KINDS = 31
_TWO_SHARE = 0.9  # of the new tiles
_SPAN = ((0, 4, 1), (0, 1, 4), (3, 4, -1), (12, 1, -4))  # of each action: first cell, to the next line, along a line
_DARKEST = (150, 30, 40)


class Play2048(Kernel):
    """The game 2048 by the rules of pgx 2.6.0.

    Actions: 0 slides left, 1 up, 2 right, 3 down; then a 2 appears on one of the empty cells, or a 4, one time in ten.
    `action_mask` in the infos marks actions that move a tile. Reward: the sum of the tiles made by merging. Terminated
    when no action moves a tile.

    An action that moves no tile ends the game with reward -1, and the board stays as it is. On the last step of a game,
    all actions are in the mask.

    Observation: bool `(4, 4, 31)`; plane 0 has the empty cells, plane k the tiles 2**k.
    """

    observation_space: ClassVar[spaces.Box] = spaces.Box(0, 1, (4, 4, _NUM_KINDS), np.bool_)  # type: ignore[arg-type]  # as it may be
    action_space = spaces.Discrete(4)
    render_fps = 4
    info_fields = ("action_mask",)

    class State(Kernel.State):
        """The board, row by row: 0, or the exponent of a tile."""

        cells: NDArray[np.uint8] = array(_NUM_CELLS, np.uint8)
        action_mask: NDArray[np.int8] = array(4, np.int8)

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Kernel.Params) -> None:
        """Begin with two tiles."""
        state.cells[:] = 0
        _add_tile(state.cells, rng)
        _add_tile(state.cells, rng)
        _find_moves(state)

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Kernel.Params) -> tuple[float, bool]:
        """Slide all lines, and add a tile."""
        reward, is_over = -1.0, True
        if state.action_mask[action] != 0:
            reward = 0.0
            first, aside, along = _SPAN[action]
            for line in range(4):
                reward += _slide(state.cells, first + line * aside, along)
            _add_tile(state.cells, rng)
            is_over = _find_moves(state) == 0
        if is_over:
            state.action_mask[:] = 1
        return reward, is_over

    @staticmethod
    def observe(state: State, out: NDArray[np.bool_]) -> None:
        """Write the planes."""
        out[:] = False
        for place in range(_NUM_CELLS):
            out[place // 4, place % 4, state.cells[place]] = True

    @staticmethod
    def render(state: State, params: Kernel.Params) -> NDArray[Any]:
        """Draw the board, `(128, 128, 3)`; larger tiles are darker, up to 2048."""
        shade = np.minimum(state.cells.reshape(4, 4, 1) / 11, 1)
        return draw_cells((COLORS[0] + shade * (np.array(_DARKEST) - COLORS[0])).astype(np.uint8))


def _slide(cells: NDArray[np.uint8], first: int, along: int) -> int:
    """Slide one line towards its first cell, merging each tile at most once; return the sum of merged tiles."""
    score = 0
    free, last = first, 0  # the cell where the next tile stops, and the tile before it if that may merge
    for k in range(4):
        tile = cells[first + k * along]
        if tile == 0:
            continue
        cells[first + k * along] = 0
        if tile == last:
            cells[free - along] = tile + 1
            score += 2 << tile
            last = 0
        else:
            cells[free] = tile
            free += along
            last = tile
    return score


def _find_moves(state: Any) -> int:
    """Write the mask of actions that move a tile; return their number."""
    num_moves = 0
    for action in range(4):
        first, aside, along = _SPAN[action]
        moves = 0
        for line in range(4):
            for k in range(3):
                here = first + line * aside + k * along
                tile, beyond = state.cells[here], state.cells[here + along]
                moves |= (beyond > 0) & ((tile == 0) | (tile == beyond))
        state.action_mask[action] = moves
        num_moves += moves
    return num_moves


def _add_tile(cells: NDArray[np.uint8], rng: np.random.Generator) -> None:
    """Put a 2 or a 4 on an empty cell."""
    num_empty = 0
    for place in range(_NUM_CELLS):
        num_empty += 1 if cells[place] == 0 else 0
    rank: Any = rng.integers(0, num_empty)
    place = 0
    while rank > 0 or cells[place] != 0:
        rank -= 1 if cells[place] == 0 else 0
        place += 1
    cells[place] = 1 if rng.random() < _TWO_SHARE else 2
