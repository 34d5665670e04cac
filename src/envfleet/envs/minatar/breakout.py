"""Breakout: keep the ball in play by a paddle, and break three rows of bricks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.minatar.game import SIZE, MinAtarGame, aside, board_space, clear, press, renderer

_FIRST_ROW, _BRICK_ROWS = 1, 3
_ALL_BRICKS = (1 << (_BRICK_ROWS * SIZE)) - 1


class Breakout(MinAtarGame):
    """MinAtar's Breakout as a kernel.

    The ball moves along diagonals and comes back from walls, bricks and the paddle; the edge of the paddle sends it
    back where it came from. Reward 1 for each brick. The last one is followed by a new wall as soon as the ball is
    down again. Terminated when the ball passes the paddle.

    Observation: planes paddle, ball, trail (where the ball was), bricks.
    """

    observation_space = board_space(4)

    class State(MinAtarGame.State):
        """Paddle, ball, its direction, its last cell; whether it is inside the wall; a bit for each brick."""

        paddle: int
        x: int
        y: int
        right: int  # 1 or -1
        down: int
        last_x: int
        last_y: int
        is_striking: bool
        bricks: int

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: MinAtarGame.Params) -> None:
        """Begin with the ball in one of the corners below the wall."""
        is_right_corner = rng.integers(2) == 1
        state.last_action = 0
        state.paddle = 4
        state.x = SIZE - 1 if is_right_corner else 0
        state.y = 3
        state.right = -1 if is_right_corner else 1
        state.down = 1
        state.last_x = state.x
        state.last_y = state.y
        state.is_striking = False
        state.bricks = _ALL_BRICKS

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: MinAtarGame.Params) -> tuple[float, bool]:
        """Move the paddle, then the ball by one cell."""
        pressed = press(state, action, rng, params)
        if state.y == SIZE - 1:  # the ball is lost, and would leave the board
            return 0.0, True
        state.paddle = aside(state.paddle, pressed)
        reward, terminated = 0.0, False
        x, y = state.x + state.right, state.y + state.down
        is_striking = False
        if x < 0 or x >= SIZE:
            x = min(max(x, 0), SIZE - 1)
            state.right = -state.right
        brick = _brick(x, y)
        if y < 0:
            y = 0
            state.down = -state.down
        elif (state.bricks & brick) != 0:
            is_striking = True
            if not state.is_striking:  # one brick each time that it enters the wall
                reward = 1.0
                state.bricks = state.bricks & ~brick
                y = state.y
                state.down = -state.down
        elif y == SIZE - 1:
            if state.bricks == 0:
                state.bricks = _ALL_BRICKS
            if state.x == state.paddle:
                y = state.y
                state.down = -state.down
            elif x == state.paddle:
                y = state.y
                state.down = -state.down
                state.right = -state.right
            else:
                terminated = True
        state.last_x = state.x
        state.last_y = state.y
        state.x = x
        state.y = y
        state.is_striking = is_striking
        return reward, terminated

    @staticmethod
    def observe(state: State, out: NDArray[np.bool_]) -> None:
        """Write the planes."""
        clear(out)
        out[SIZE - 1, state.paddle, 0] = True
        out[state.y, state.x, 1] = True
        out[state.last_y, state.last_x, 2] = True
        for row in range(_FIRST_ROW, _FIRST_ROW + _BRICK_ROWS):
            for column in range(SIZE):
                out[row, column, 3] = (state.bricks & _brick(column, row)) != 0

    render = renderer(observe, 4)


def _brick(x: int, y: int) -> int:
    """Return the bit of the brick in a cell, or 0 outside the wall."""
    row = y - _FIRST_ROW
    return 1 << (row * SIZE + x) if 0 <= row < _BRICK_ROWS else 0
