"""CliffWalking: walk along a cliff to the goal, on the shortest way or a safe one."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.frames import draw_original
from envfleet.envs.toy_text.sampling import draw_turn
from envfleet.kernels import Kernel

_ROWS, _COLUMNS = 4, 12


class CliffWalking(Kernel):
    """Gymnasium's CliffWalking-v1 as a kernel, 4 × 12 cells: the same spaces, draws, rewards, ends and infos.

    The walker begins in the lower left corner and the goal is in the lower right one; the cliff lies between them.

    Observation: row × 12 + column. Actions: 0 up, 1 right, 2 down, 3 left; if it is slippery, the walker goes there or
    to either side, each with probability 1/3. Reward -1 a step, and -100 for one over the cliff, which leads back to
    the start. Terminated on the goal, without a time limit.

    Infos: `prob`, the probability of the move that was made.

    Source: example 6.6 of R. Sutton and A. Barto, "Reinforcement Learning: An Introduction".
    """

    observation_space = spaces.Discrete(_ROWS * _COLUMNS)
    action_space = spaces.Discrete(4)
    info_fields = ("prob",)
    render_fps = 4

    class State(Kernel.State):
        """Position of the walker, and the last move for Gymnasium's infos and frames (-1: none yet)."""

        row: int
        column: int
        last_action: int
        prob: float

    class Params(Kernel.Params):
        """Gymnasium's argument of the same name."""

        is_slippery: bool = False

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        """Begin in the corner; the draw decides nothing, as in Gymnasium."""
        rng.random()
        state.row = _ROWS - 1
        state.column = 0
        state.last_action = -1
        state.prob = 1.0

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Params) -> tuple[float, bool]:
        """Walk or slip one cell; the edge stops the walker."""
        ahead = 1.0 / 3.0 if params.is_slippery else 1.0
        aside = 1.0 / 3.0 if params.is_slippery else 0.0
        direction = (action + draw_turn(rng, ahead, aside)) % 4
        down = (direction == 2) * 1 - (direction == 0) * 1
        right = (direction == 1) * 1 - (direction == 3) * 1
        row = min(max(state.row + down, 0), _ROWS - 1)
        column = min(max(state.column + right, 0), _COLUMNS - 1)
        is_cliff = (row == _ROWS - 1) & (column > 0) & (column < _COLUMNS - 1)
        state.row = row
        state.column = 0 if is_cliff else column
        state.last_action = action
        state.prob = ahead
        return -100.0 if is_cliff else -1.0, (row == _ROWS - 1) & (column == _COLUMNS - 1)

    @staticmethod
    def observe(state: State, out: NDArray[np.int64]) -> None:
        """Write the position."""
        out[()] = state.row * _COLUMNS + state.column

    @staticmethod
    def render(state: State, params: Params) -> NDArray[Any]:
        """Draw Gymnasium's frame, `(240, 720, 3)`; since Gymnasium 1.4 `(256, 768, 3)`."""
        from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv

        return draw_original(
            CliffWalkingEnv,
            None,
            surface="window_surface",
            s=int(state.row * _COLUMNS + state.column),
            lastaction=None if state.last_action < 0 else int(state.last_action),
        )
