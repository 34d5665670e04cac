"""Rules of the game apart from the physics: start positions, forces of actions, rewards, the scripted player.

All are functions of numbers. The game on Box2D calls them uncompiled; the kernel compiles them. The public environment
mixes float32 and float64, and agents were trained with it: forces are float32, values read from a body are float32
widened to float64, and each rounding below is part of the rules. Players are 0 (left) and 1
(right; sees the field rotated by 180 degrees).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey.constants import Mode

_F = np.float32
_NORMAL, _SHOOTING, _DEFENSE = int(Mode.NORMAL), int(Mode.TRAIN_SHOOTING), int(Mode.TRAIN_DEFENSE)
_STEP_S = _F(c.TIME_STEP_S)
_FULL_FORCES = (_F(c.TRANSLATION_FORCE_N), _F(-c.TRANSLATION_FORCE_N))
_FULL_TORQUE = _F(c.TORQUE_NM)
_PUCK_MASS, _SHOT_SPEED = _F(c.PUCK_MASS), _F(c.SHOT_SPEED)

# ------------------------------------------------------------------ how a game starts


def draw_mode(mode: int, shooting_share: float, defense_share: float, rng: np.random.Generator) -> int:
    """Draw the mode of a game from a mixture.

    Args:
        mode: Mode with the remaining probability.
        shooting_share: Probability of `TRAIN_SHOOTING`.
        defense_share: Probability of `TRAIN_DEFENSE`.
        rng: Generator; draws one number for a mixture, otherwise none.
    """
    drawn_share = shooting_share + defense_share
    if drawn_share > 0.0:
        drawn = rng.random()
        if drawn < shooting_share:
            return _SHOOTING
        if drawn < drawn_share:
            return _DEFENSE
    return mode


def draw_start(mode: int, starter: int, rng: np.random.Generator) -> tuple[float, float, float, float, float]:
    """Draw the initial positions; the start position of player one is fixed.

    Args:
        mode: Mode of the game.
        starter: Player that gets the puck in `NORMAL`: 1 or 2; 0 draws it last.
        rng: Generator; draws up to five numbers, one at a time.

    Returns:
        x and y of the second racket, x and y of the puck, and the y at which the puck is shot in `TRAIN_DEFENSE`, with
        `serve_force`.
    """
    width, height = c.FIELD_WIDTH, c.FIELD_HEIGHT
    racket_x, racket_y = c.RACKET_POSITIONS[1]
    if mode != _NORMAL:
        racket_x += rng.uniform(-width / 3, width / 6)
        racket_y += rng.uniform(-height / 4, height / 4)
    if mode == _DEFENSE:
        puck_x = c.CENTER_X + rng.uniform(0.0, width / 3)
        puck_y = c.CENTER_Y + 0.8 * rng.uniform(-height / 2, height / 2)
        aim_y = c.CENTER_Y + 0.6 * rng.uniform(-c.GOAL_HALF_HEIGHT, c.GOAL_HALF_HEIGHT)
        return racket_x, racket_y, puck_x, puck_y, aim_y
    away = rng.uniform(1.0, 2.0)
    puck_y = c.CENTER_Y + rng.uniform(-1.0, 1.0)
    is_one_starting = starter == 1 or mode == _SHOOTING
    if starter == 0 and mode == _NORMAL:
        is_one_starting = rng.random() < 0.5
    puck_x = c.CENTER_X - away if is_one_starting else c.CENTER_X + away
    return racket_x, racket_y, puck_x, puck_y, 0.0


# ------------------------------------------------------------------ what actions do


def push(
    player: int,
    x: float,
    y: float,
    velocity_x: float,
    velocity_y: float,
    action_x: np.float32 | float,
    action_y: np.float32 | float,
) -> tuple[float, np.float32, np.float32, bool, bool]:
    """Return the effect of a translation action on a racket.

    Args:
        player: Player, 1 or 2.
        x: Position of the racket along x (m).
        y: Position along y (m).
        velocity_x: Velocity of the racket along x (m/s).
        velocity_y: Velocity along y (m/s).
        action_x: Horizontal force, from -1 to 1, positive towards the opponent; a number of float32.
        action_y: Vertical force, from -1 to 1.

    Returns:
        Linear damping, force along x and y (N), and whether the velocity along x, or y, is set to 0 at once.
    """
    side, mass = (-1.0 if player else 1.0), c.RACKET_MASSES[player]
    force_x, force_y = _FULL_FORCES[player] * action_x, _FULL_FORCES[player] * action_y
    beyond = x - c.CENTER_X
    forward = side * beyond
    damping = c.FAST_RACKET_LINEAR_DAMPING
    if forward > -c.STRIP_HALF_WIDTH:  # the racket is kept off the other half, whatever the action
        stop = -2 * velocity_x * mass / c.TIME_STEP_S if side * velocity_x > 0 else 0.0
        force_x = _F(stop) + _F(-side * beyond * velocity_x * mass / c.TIME_STEP_S)
    else:
        speed = math.sqrt(velocity_x * velocity_x + velocity_y * velocity_y)
        if speed < c.MAX_RACKET_SPEED:
            damping = c.RACKET_LINEAR_DAMPING
        else:
            next_x = velocity_x + np.float64(_STEP_S * force_x / _F(mass))
            next_y = velocity_y + np.float64(_STEP_S * force_y / _F(mass))
            if math.sqrt(next_x * next_x + next_y * next_y) >= speed:
                return damping, _F(0), _F(0), False, False
    is_leaving_x = bool((forward < -c.FAR_X and side * force_x < 0) or (forward > 0 and side * force_x > 0))
    is_leaving_y = bool((y > c.HIGHEST_Y and force_y > 0) or (y < c.LOWEST_Y and force_y < 0))
    force_x, force_y = _F(0) if is_leaving_x else force_x, _F(0) if is_leaving_y else force_y
    return damping, force_x, force_y, is_leaving_x, is_leaving_y


def turn(player: int, angle: float, spin: float, action: np.float32 | float) -> tuple[np.float32, float]:
    """Return torque (N m) and angular damping of a rotation action; a racket that is turned too far is turned back."""
    if abs(angle) > c.MAX_ANGLE:
        mass = c.RACKET_MASSES[player]
        back = -0.1 * spin * mass / c.TIME_STEP_S if angle * spin > 0 else 0.0
        return _F(back - 0.1 * angle * mass / c.TIME_STEP_S), c.TURNED_RACKET_ANGULAR_DAMPING
    return _FULL_TORQUE * action, c.RACKET_ANGULAR_DAMPING


def puck_damping(velocity_x: float, velocity_y: float) -> float:
    """Return the damping of the puck, which is high above the speed of a shot."""
    is_fast = math.sqrt(velocity_x * velocity_x + velocity_y * velocity_y) > c.MAX_PUCK_SPEED
    return c.FAST_PUCK_LINEAR_DAMPING if is_fast else c.PUCK_LINEAR_DAMPING


def shot_force(player: int, angle: float) -> tuple[np.float32, np.float32]:
    """Return the force (N) on a puck that is shot in the direction of the player's racket."""
    side = -1.0 if player else 1.0
    x, y = _F(side * math.cos(angle)), _F(side * math.sin(angle))
    return x * _PUCK_MASS / _STEP_S * _SHOT_SPEED, y * _PUCK_MASS / _STEP_S * _SHOT_SPEED


def serve_force(x: float, y: float, aim_y: float) -> tuple[np.float32, np.float32]:
    """Return the force (N) on a puck, resting at x and y, that is shot at a height of the left edge of the field."""
    away_x, away_y = _F(0) - _F(x), _F(aim_y) - _F(y)
    distance = _F(math.sqrt(away_x * away_x + away_y * away_y))
    force_x = away_x / distance * _SHOT_SPEED * _PUCK_MASS / _STEP_S
    return force_x, away_y / distance * _SHOT_SPEED * _PUCK_MASS / _STEP_S


# ------------------------------------------------------------------ what is paid


def reward_terms(
    player: int,
    racket_x: float,
    racket_y: float,
    puck_x: float,
    puck_y: float,
    puck_velocity_x: float,
    hold_steps: int,
    limit: int,
) -> tuple[float, float, float]:
    """Compute the three shaping terms of one player.

    Args:
        player: Player, 1 or 2.
        racket_x: Position of the player's racket along x (m); all numbers are in world coordinates.
        racket_y: Position of the racket along y (m).
        puck_x: Position of the puck along x (m).
        puck_y: Position of the puck along y (m).
        puck_velocity_x: Velocity of the puck along x (m/s).
        hold_steps: The player's hold counter.
        limit: The time limit (steps).

    Returns:
        Closeness to the puck (0 or below; only while it rests or comes nearer on the player's own half), touch (1 in
        the step of a catch, else 0), and direction (positive when the puck flies towards the opponent).
    """
    side, closeness = (-1.0 if player else 1.0), 0.0
    if side * (puck_x - c.CENTER_X) < 0 and side * puck_velocity_x <= 0:
        per_meter = c.CLOSENESS_TOTAL / (c.CLOSENESS_DISTANCE * limit / 2)
        # The difference is float32 in the public environment.
        away_x, away_y = np.float64(_F(racket_x - puck_x)), np.float64(_F(racket_y - puck_y))
        closeness = math.sqrt(away_x * away_x + away_y * away_y) * per_meter
    touch = 1.0 if hold_steps == c.HOLD_STEPS else 0.0
    return closeness, touch, side * puck_velocity_x * (1 / (limit * c.MAX_PUCK_SPEED))


# ------------------------------------------------------------------ how the scripted player acts


def scripted_forces(o: Any, is_weak: bool, swing: float) -> tuple[float, float, float]:
    """Chase the puck from behind, or return to the goal, while swinging the racket.

    Args:
        o: Observation of the player, 16 or 18 numbers in float64.
        is_weak: True for the weak player, which has a twentieth of the gain.
        swing: Sine of the phase of the swing.

    Returns:
        Force x, force y and torque, each from -1 to 1.
    """
    target_x, target_y = c.HOME_X, 0.0
    if o[14] < c.AWAY_SPEED:
        target_y = o[13]
        away_x, away_y = o[0] - o[12], o[1] - o[13]
        if away_x < 0 and abs(away_y) < c.CHASE_WIDTH:
            distance = math.sqrt(away_x * away_x + away_y * away_y)
            target_x, target_y = o[12] + c.LEAD_X, o[13] + distance * o[15] * c.LEAD_Y
    gain = c.WEAK_GAIN if is_weak else c.STRONG_GAIN
    force_x = _steer(target_x - o[0], o[3], gain, 0.1)
    force_y = _steer(target_y - o[1], o[4], gain / 5, 0.1)
    return force_x, force_y, _steer(c.MAX_ANGLE * swing - o[2], o[5], gain / 2, 1.0)


def _steer(error: float, velocity: float, gain: float, brake_s: float) -> float:
    """Return the force towards a target, with braking if it would be reached within `brake_s`."""
    shifted = velocity + 0.01
    is_braking = shifted != 0 and abs(error / shifted) < brake_s
    return min(max(error * gain - (c.DAMPING_GAIN * velocity if is_braking else 0.0), -1.0), 1.0)


def scripted_shot(hold_steps: float) -> float:
    """Return the shoot action of the scripted player: 1 if it can hold the puck for a few more steps only."""
    return 1.0 if 0 < hold_steps < c.LAST_HOLD_STEPS else 0.0
