"""Space Invaders: shoot the aliens before they or their bullets arrive."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.minatar.game import FIRE, SIZE, MinAtarGame, aside, board_space, clear, press, renderer
from envfleet.kernels import array

_BOTTOM = SIZE - 1
_WAVE_ROWS, _WAVE = 4, 0b0011111100  # columns 2 to 7
_SHOT_INTERVAL, _ALIEN_SHOT_INTERVAL = 5, 10
_MOVE_INTERVAL, _LEAST_MOVE_INTERVAL = 12, 6


class SpaceInvaders(MinAtarGame):
    """MinAtar's Space Invaders as a kernel.

    The cannon moves along the bottom. The aliens walk from side to side, each time one row lower, and the fewer there
    are the faster; the one that is nearest to the cannon shoots. Reward 1 for each alien that is shot. Terminated when
    an alien or a bullet touches the cannon, or aliens turn in the last row. Each wave of 24 is faster than the last.

    Observation: planes cannon, aliens, aliens if they walk left, aliens if right, own bullets, their bullets.
    """

    observation_space = board_space(6)

    class State(MinAtarGame.State):
        """The cannon, and the three maps, one int for each row with a bit for each column; intervals and timers."""

        x: int
        direction: int  # of the aliens, 1 or -1
        aliens: NDArray[np.int32] = array(SIZE, np.int32)
        bullets: NDArray[np.int32] = array(SIZE, np.int32)
        alien_bullets: NDArray[np.int32] = array(SIZE, np.int32)
        shot_timer: int
        alien_shot_timer: int
        move_interval: int
        move_timer: int

    class Params(MinAtarGame.Params):
        """Sticky actions, and whether the waves become faster."""

        difficulty_ramping: bool = True

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        """Begin with a wave at the top."""
        state.last_action = 0
        state.x = 5
        state.direction = -1
        state.aliens[:] = 0
        state.aliens[:_WAVE_ROWS] = _WAVE
        state.bullets[:] = 0
        state.alien_bullets[:] = 0
        state.shot_timer = 0
        state.alien_shot_timer = _ALIEN_SHOT_INTERVAL
        state.move_interval = _MOVE_INTERVAL
        state.move_timer = _MOVE_INTERVAL

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Params) -> tuple[float, bool]:
        """Act, then move bullets and aliens, let one shoot, and remove those that are hit."""
        pressed = press(state, action, rng, params)
        if pressed == FIRE and state.shot_timer == 0:
            state.bullets[_BOTTOM] |= 1 << state.x
            state.shot_timer = _SHOT_INTERVAL
        state.x = aside(state.x, pressed)
        for row in range(_BOTTOM):
            state.bullets[row] = state.bullets[row + 1]
            state.alien_bullets[_BOTTOM - row] = state.alien_bullets[_BOTTOM - row - 1]
        state.bullets[_BOTTOM] = 0
        state.alien_bullets[0] = 0
        cannon = 1 << state.x
        terminated = ((state.alien_bullets[_BOTTOM] | state.aliens[_BOTTOM]) & cannon) != 0
        if state.move_timer == 0:
            terminated = _march(state) or terminated or (state.aliens[_BOTTOM] & cannon) != 0
        if state.alien_shot_timer == 0:
            state.alien_shot_timer = _ALIEN_SHOT_INTERVAL
            _shoot(state)
        num_hit = 0
        for row in range(SIZE):
            hit = state.aliens[row] & state.bullets[row]
            state.aliens[row] &= ~hit
            state.bullets[row] &= ~hit
            num_hit += _count(hit)
        state.shot_timer = max(state.shot_timer - 1, 0)
        state.move_timer = state.move_timer - 1
        state.alien_shot_timer = state.alien_shot_timer - 1
        if _columns(state) == 0:
            if params.difficulty_ramping:
                state.move_interval = max(state.move_interval - 1, _LEAST_MOVE_INTERVAL)
            state.aliens[:_WAVE_ROWS] = _WAVE
        return float(num_hit), terminated

    @staticmethod
    def observe(state: State, out: NDArray[np.bool_]) -> None:
        """Write the planes."""
        clear(out)
        out[_BOTTOM, state.x, 0] = True
        is_left = state.direction < 0
        for row in range(SIZE):
            for column in range(SIZE):
                is_alien = (state.aliens[row] >> column & 1) != 0
                out[row, column, 1] = is_alien
                out[row, column, 2] = is_alien & is_left
                out[row, column, 3] = is_alien & (not is_left)
                out[row, column, 4] = (state.bullets[row] >> column & 1) != 0
                out[row, column, 5] = (state.alien_bullets[row] >> column & 1) != 0

    render = renderer(observe, 6)


def _count(bits: int) -> int:
    """Return how many bits are set."""
    count = 0
    while bits != 0:
        bits &= bits - 1
        count += 1
    return count


def _columns(state: SpaceInvaders.State) -> int:
    """Return the columns in which there are aliens, a bit for each."""
    columns = 0
    for row in range(SIZE):
        columns |= state.aliens[row]
    return columns


def _march(state: SpaceInvaders.State) -> bool:
    """Move the aliens to the side, or at the edge down. Returns whether that is below the board."""
    count = 0
    for row in range(SIZE):
        count += _count(state.aliens[row])
    state.move_timer = min(count, state.move_interval)
    columns = _columns(state)
    is_at_edge = (columns & 1) != 0 if state.direction < 0 else columns >> _BOTTOM != 0
    if not is_at_edge:
        for row in range(SIZE):
            aliens = state.aliens[row]
            state.aliens[row] = aliens >> 1 if state.direction < 0 else aliens << 1
        return False
    state.direction = -state.direction
    lowest = state.aliens[_BOTTOM]
    for row in range(_BOTTOM, 0, -1):
        state.aliens[row] = state.aliens[row - 1]
    state.aliens[0] = lowest  # the last frame shows them at the top
    return bool(lowest != 0)


def _shoot(state: SpaceInvaders.State) -> None:
    """Let the lowest alien of the column nearest to the cannon shoot, of two such columns the left one."""
    columns = _columns(state)
    distance = 0
    while (columns & ((1 << state.x) >> distance | (1 << state.x) << distance)) == 0:
        distance += 1
    left = (1 << state.x) >> distance
    column = left if (columns & left) != 0 else (1 << state.x) << distance
    row = _BOTTOM
    while (state.aliens[row] & column) == 0:
        row -= 1
    state.alien_bullets[row] |= column
