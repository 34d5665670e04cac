"""The rules around the physics, compiled: starts, observations, rewards and the scripted player.

The numbers are those of `envfleet.envs.hockey.rules`, `views` and `scripted`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey.constants import Mode
from envfleet.envs.hockey.kernel.bodies import add_body, build
from envfleet.envs.hockey.kernel.clearing import clear
from envfleet.envs.hockey.kernel.drive import hold, push, serve, slow_down, turn_racket
from envfleet.envs.hockey.kernel.physics import step_physics
from envfleet.envs.hockey.kernel.shapes import ONE, PUCK, RACKET_ONE, RACKET_TWO, F
from envfleet.kernels import outlined

_NORMAL, _SHOOTING, _DEFENSE = int(Mode.NORMAL), int(Mode.TRAIN_SHOOTING), int(Mode.TRAIN_DEFENSE)
_LIMITS = np.array([c.TIME_LIMIT_STEPS[mode] for mode in Mode])
_WEAK = 1

_AWAY_SPEED, _CHASE_WIDTH = 0.5, 0.5
_LEAD_X, _LEAD_Y, _HOME_X = 0.2, 0.1, -3.5
_LAST_HOLD_STEPS = 7


def draw_mode(state: Any, rng: Any, params: Any) -> None:
    """Draw what the game is, as `envfleet.envs.hockey.rules.draw_mode` does."""
    state.mode = params.mode
    drawn_share = params.shooting_share + params.defense_share
    if drawn_share > 0.0:
        drawn = rng.random()
        if drawn < params.shooting_share:
            state.mode = _SHOOTING
        elif drawn < drawn_share:
            state.mode = _DEFENSE


@outlined
def begin(state: Any, rng: Any, mode: int, starter: int, keep_mode: bool) -> None:
    """Begin a game; draws in the order of `draw_start`, then how the scripted players' rackets swing."""
    build(state)
    clear(state)
    width, height = c.FIELD_WIDTH, c.FIELD_HEIGHT
    racket_x, racket_y = c.RACKET_POSITIONS[1]
    aim = 0.0
    if mode != _NORMAL:
        racket_x += rng.uniform(-width / 3, width / 6)
        racket_y += rng.uniform(-height / 4, height / 4)
    if mode == _DEFENSE:
        puck_x = c.CENTRE_X + rng.uniform(0.0, width / 3)
        puck_y = c.CENTRE_Y + 0.8 * rng.uniform(-height / 2, height / 2)
        aim = c.CENTRE_Y + 0.6 * rng.uniform(-c.GOAL_HALF_HEIGHT, c.GOAL_HALF_HEIGHT)
    else:
        away = rng.uniform(1.0, 2.0)
        puck_y = c.CENTRE_Y + rng.uniform(-1.0, 1.0)
        is_one_starting = starter == 1 or mode == _SHOOTING
        if starter == 0 and mode == _NORMAL:
            is_one_starting = rng.random() < 0.5
        puck_x = c.CENTRE_X - away if is_one_starting else c.CENTRE_X + away
    add_body(state, RACKET_ONE, F(c.RACKET_POSITIONS[0][0]), F(c.RACKET_POSITIONS[0][1]))
    add_body(state, RACKET_TWO, F(racket_x), F(racket_y))
    add_body(state, PUCK, F(puck_x), F(puck_y))
    if mode == _DEFENSE:
        serve(state, 0.0, aim)
    state.can_hold = keep_mode
    state.holds[0] = 0
    state.holds[1] = 0
    state.winner = 0
    state.clock = 0
    state.limit = _LIMITS[mode]
    # Whoever plays, as that may change during the game.
    state.phases[0] = rng.uniform(0.0, c.PHASE_RANGE)
    state.phases[1] = rng.uniform(0.0, c.PHASE_RANGE)
    _inform(state)


@outlined
def play(state: Any) -> None:
    """Play one step with the actions in the state."""
    for player in range(2):
        push(state, player, state.actions[4 * player], state.actions[4 * player + 1])
        turn_racket(state, player, state.actions[4 * player + 2])
    slow_down(state)
    if state.can_hold:
        for player in range(2):
            hold(state, player, state.actions[4 * player + 3])
    step_physics(state)
    state.clock += 1
    _inform(state)


def command(state: Any, player: int, number: int, action: np.float32) -> None:
    """Keep one number of a player's action, clipped to [-1, 1]."""
    state.actions[4 * player + number] = max(-ONE, min(action, ONE))


def see(state: Any, player: int, number: int) -> float:
    """Return one of the 18 numbers that a player sees."""
    sign = -1.0 if player else 1.0
    body = (player if number < 6 else 1 - player) if number < 12 else PUCK
    quantity = number % 6
    seen = 0.0
    if number >= 16:
        if state.can_hold:
            seen = float(state.holds[player if number == 16 else 1 - player])
    elif quantity == 0:
        seen = sign * (np.float64(state.x[body]) - c.CENTRE_X)
    elif quantity == 1:
        seen = sign * (np.float64(state.y[body]) - c.CENTRE_Y)
    elif quantity == 2 and body != PUCK:
        seen = np.float64(state.angle[body])
    elif quantity == 5:
        seen = np.float64(state.spin[body])
    else:
        is_x = quantity == (2 if body == PUCK else 3)
        seen = sign * np.float64(state.velocity_x[body] if is_x else state.velocity_y[body])
    return seen


def _inform(state: Any) -> None:
    """Compute the terms of both players' rewards."""
    per_metre = c.CLOSENESS_TOTAL / (c.CLOSENESS_DISTANCE * state.limit / 2)
    per_speed = 1 / (state.limit * c.MAX_PUCK_SPEED)
    velocity_x = np.float64(state.velocity_x[PUCK])
    closeness_one, closeness_two = 0.0, 0.0
    if state.x[PUCK] < c.CENTRE_X and velocity_x <= 0:
        closeness_one = _distance(state, RACKET_ONE) * per_metre
    if state.x[PUCK] > c.CENTRE_X and velocity_x >= 0:
        closeness_two = _distance(state, RACKET_TWO) * per_metre
    state.reward_closeness_to_puck = closeness_one
    state.reward_closeness_to_puck_two = closeness_two
    state.reward_touch_puck = 1.0 if state.holds[0] == c.HOLD_STEPS else 0.0
    state.reward_touch_puck_two = 1.0 if state.holds[1] == c.HOLD_STEPS else 0.0
    state.reward_puck_direction = velocity_x * per_speed
    state.reward_puck_direction_two = -velocity_x * per_speed
    state.reward_two = -c.WIN_REWARD * state.winner + closeness_two


def _distance(state: Any, racket: int) -> float:
    x, y = np.float64(F(state.x[racket] - state.x[PUCK])), np.float64(F(state.y[racket] - state.y[PUCK]))
    return math.sqrt(x * x + y * y)


@outlined
def swing(state: Any, rng: Any, player: int, strength: int) -> None:
    """Let the scripted player choose a player's action; strength 1 is weak, 2 strong."""
    state.phases[player] += rng.uniform(0.0, c.PHASE_GROWTH)
    o = state.seen
    for number in range(18):
        o[number] = F(see(state, player, number))
    target_x, target_y = _HOME_X, 0.0
    puck_x, puck_y = np.float64(o[12]), np.float64(o[13])
    own_x, own_y = np.float64(o[0]), np.float64(o[1])
    if o[14] < _AWAY_SPEED:
        target_y = puck_y
        if own_x < puck_x and abs(own_y - puck_y) < _CHASE_WIDTH:
            away_x, away_y = own_x - puck_x, own_y - puck_y
            distance = math.sqrt(away_x * away_x + away_y * away_y)
            target_x, target_y = puck_x + _LEAD_X, puck_y + distance * np.float64(o[15]) * _LEAD_Y
    gain = c.WEAK_GAIN if strength == _WEAK else c.STRONG_GAIN
    target_angle = c.MAX_ANGLE * math.sin(state.phases[player])
    _steer(state, player, 0, target_x - own_x, np.float64(o[3]), 0.1, gain)
    _steer(state, player, 1, target_y - own_y, np.float64(o[4]), 0.1, gain / 5)
    _steer(state, player, 2, target_angle - np.float64(o[2]), np.float64(o[5]), 1.0, gain / 2)
    command(state, player, 3, ONE if 0 < state.holds[player] < _LAST_HOLD_STEPS else F(0))


def _steer(state: Any, player: int, number: int, error: float, velocity: float, brake_s: float, gain: float) -> None:
    shifted = velocity + 0.01
    is_braking = shifted != 0 and abs(error / shifted) < brake_s
    force = error * gain - (c.DAMPING_GAIN * velocity if is_braking else 0.0)
    command(state, player, number, F(force))
