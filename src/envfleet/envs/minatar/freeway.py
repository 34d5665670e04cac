"""Freeway: cross a road of eight lanes as often as time allows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.minatar.game import DOWN, SIZE, UP, MinAtarGame, board_space, clear, press, renderer
from envfleet.kernels import array

_LANES = 8  # rows 1 to 8
_COLUMN = 4  # of the chicken
_BOTTOM = SIZE - 1
_MOVE_INTERVAL, _NUM_STEPS = 3, 2500


class Freeway(MinAtarGame):
    """MinAtar's Freeway as a kernel.

    The chicken may move up or down every third step. Reward 1 at the top, from where it begins at the bottom again,
    while all cars get new speeds and directions. A car that touches it sends it to the bottom, too. Terminated after
    2,501 steps, and never before.

    Observation: planes chicken, cars, and five of trails, one cell behind a car, in the plane of its speed: the first
    for cars that wait one step before each move, the last for those that wait five.
    """

    observation_space = board_space(7)

    class State(MinAtarGame.State):
        """The chicken, when it may move, how many steps are left; of each car place, speed and steps until it moves."""

        y: int
        move_timer: int
        remaining: int
        places: NDArray[np.int8] = array(_LANES, np.int8)
        speeds: NDArray[np.int8] = array(_LANES, np.int8)  # steps between two moves; negative to the left
        timers: NDArray[np.int8] = array(_LANES, np.int8)

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: MinAtarGame.Params) -> None:
        """Begin at the bottom, with all cars at the left edge."""
        _draw_cars(state, rng)
        state.places[:] = 0
        state.last_action = 0
        state.y = _BOTTOM
        state.move_timer = _MOVE_INTERVAL
        state.remaining = _NUM_STEPS

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: MinAtarGame.Params) -> tuple[float, bool]:
        """Move the chicken, then the cars."""
        pressed = press(state, action, rng, params)
        if pressed in (UP, DOWN) and state.move_timer == 0:
            state.move_timer = _MOVE_INTERVAL
            state.y = min(max(state.y + (1 if pressed == DOWN else -1), 0), _BOTTOM)
        reward = 0.0
        if state.y == 0:
            reward = 1.0
            _draw_cars(state, rng)
            state.y = _BOTTOM
        for lane in range(_LANES):
            is_hit = state.places[lane] == _COLUMN
            if state.timers[lane] == 0:
                state.timers[lane] = abs(state.speeds[lane])
                state.places[lane] = (state.places[lane] + (1 if state.speeds[lane] > 0 else -1)) % SIZE
                is_hit = is_hit | (state.places[lane] == _COLUMN)
            else:
                state.timers[lane] -= 1
            if is_hit and state.y == lane + 1:
                state.y = _BOTTOM
        state.move_timer = max(state.move_timer - 1, 0)
        state.remaining = state.remaining - 1
        return reward, state.remaining < 0

    @staticmethod
    def observe(state: State, out: NDArray[np.bool_]) -> None:
        """Write the planes."""
        clear(out)
        out[state.y, _COLUMN, 0] = True
        for lane in range(_LANES):
            speed = state.speeds[lane]
            behind = (state.places[lane] - (1 if speed > 0 else -1)) % SIZE
            out[lane + 1, state.places[lane], 1] = True
            out[lane + 1, behind, 1 + abs(speed)] = True

    render = renderer(observe, 7)


def _draw_cars(state: Freeway.State, rng: np.random.Generator) -> None:
    """Give every car a speed and a direction."""
    for lane in range(_LANES):
        state.timers[lane] = rng.integers(1, 6)
    for lane in range(_LANES):
        state.speeds[lane] = state.timers[lane] if rng.random() > 0.5 else -state.timers[lane]
