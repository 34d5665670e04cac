"""Asterix: gather the gold that crosses the board, and avoid the enemies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.minatar.game import DOWN, SIZE, UP, MinAtarGame, aside, board_space, clear, press, renderer
from envfleet.kernels import array

_LANES = 8  # rows 1 to 8
_EMPTY, _ENEMY, _GOLD = 0, 1, 2
_SPAWN_INTERVAL, _MOVE_INTERVAL, _RAMP_INTERVAL = 10, 5, 100


class Asterix(MinAtarGame):
    """MinAtar's Asterix as a kernel.

    Gold and enemies come from both sides, at most one in each of eight rows, and cross the board. Reward 1 for each
    gold that is touched. Terminated when an enemy is touched. With time they come and move faster.

    Observation: planes player, enemies, trail (behind each thing), gold.
    """

    observation_space = board_space(4)

    class State(MinAtarGame.State):
        """The player; for each row what crosses it, where and in which direction; intervals, and steps until then."""

        x: int
        y: int
        kinds: NDArray[np.int8] = array(_LANES, np.int8)
        places: NDArray[np.int8] = array(_LANES, np.int8)
        directions: NDArray[np.int8] = array(_LANES, np.int8)  # 1 is to the right, -1 to the left
        spawn_interval: int
        spawn_timer: int
        move_interval: int
        move_timer: int
        ramp_timer: int
        ramp_index: int

    class Params(MinAtarGame.Params):
        """Sticky actions, and whether the game becomes faster."""

        difficulty_ramping: bool = True

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        """Begin in the middle of an empty board."""
        state.last_action = 0
        state.x = 5
        state.y = 5
        state.kinds[:] = _EMPTY
        state.places[:] = 0
        state.directions[:] = 1
        state.spawn_interval = _SPAWN_INTERVAL
        state.spawn_timer = _SPAWN_INTERVAL
        state.move_interval = _MOVE_INTERVAL
        state.move_timer = _MOVE_INTERVAL
        state.ramp_timer = _RAMP_INTERVAL
        state.ramp_index = 0

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Params) -> tuple[float, bool]:
        """Let something come, move the player, then everything else."""
        pressed = press(state, action, rng, params)
        if state.spawn_timer == 0:
            _spawn(state, rng)
            state.spawn_timer = state.spawn_interval
        state.x = aside(state.x, pressed)
        state.y = min(max(state.y + (pressed == DOWN) * 1 - (pressed == UP) * 1, 1), _LANES)
        touched = _touch(state)
        num_gold, is_hit = (touched == _GOLD) * 1, touched == _ENEMY
        if state.move_timer == 0:
            state.move_timer = state.move_interval
            for lane in range(_LANES):
                state.places[lane] += state.directions[lane]
                if state.places[lane] < 0 or state.places[lane] >= SIZE:
                    state.kinds[lane] = _EMPTY
            touched = _touch(state)
            num_gold += (touched == _GOLD) * 1
            is_hit = is_hit | (touched == _ENEMY)
        state.spawn_timer = state.spawn_timer - 1
        state.move_timer = state.move_timer - 1
        if params.difficulty_ramping:
            _ramp(state)
        return float(num_gold), is_hit

    @staticmethod
    def observe(state: State, out: NDArray[np.bool_]) -> None:
        """Write the planes."""
        clear(out)
        out[state.y, state.x, 0] = True
        for lane in range(_LANES):
            kind, place = state.kinds[lane], state.places[lane]
            if kind != _EMPTY:
                out[lane + 1, place, 3 if kind == _GOLD else 1] = True
                behind = place - state.directions[lane]
                if 0 <= behind < SIZE:
                    out[lane + 1, behind, 2] = True

    render = renderer(observe, 4)


def _spawn(state: Asterix.State, rng: np.random.Generator) -> None:
    """Let an enemy or gold into one of the empty rows, if there is one."""
    is_from_left = rng.random() < 0.5
    is_gold = rng.random() < 1.0 / 3.0
    num_empty = 0
    for lane in range(_LANES):
        num_empty += state.kinds[lane] == _EMPTY
    if num_empty == 0:
        return
    remaining = rng.integers(num_empty)
    for lane in range(_LANES):
        if state.kinds[lane] == _EMPTY:
            if remaining == 0:
                state.kinds[lane] = _GOLD if is_gold else _ENEMY
                state.places[lane] = 0 if is_from_left else SIZE - 1
                state.directions[lane] = 1 if is_from_left else -1
            remaining -= 1


def _touch(state: Asterix.State) -> int:
    """Return what is in the cell of the player, and take it if it is gold."""
    lane = state.y - 1
    if state.places[lane] != state.x:
        return _EMPTY
    kind = state.kinds[lane]
    if kind == _GOLD:
        state.kinds[lane] = _EMPTY
    return int(kind)


def _ramp(state: Asterix.State) -> None:
    """Shorten the intervals from time to time, that of moves every other time, until both are 1."""
    if state.spawn_interval <= 1 and state.move_interval <= 1:
        return
    if state.ramp_timer >= 0:
        state.ramp_timer = state.ramp_timer - 1
        return
    state.move_interval = max(state.move_interval - state.ramp_index % 2, 1)
    state.spawn_interval = max(state.spawn_interval - 1, 1)
    state.ramp_index = state.ramp_index + 1
    state.ramp_timer = _RAMP_INTERVAL
