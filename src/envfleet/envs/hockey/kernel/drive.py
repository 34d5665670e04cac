"""From actions to forces, compiled: the same roundings as in `envfleet.envs.hockey.control`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey.kernel.bodies import teleport, wake
from envfleet.envs.hockey.kernel.shapes import MASS, PUCK, STEP_S, ZERO, F

_FORCE, _TORQUE = F(c.TRANSLATION_FORCE_N), F(c.TORQUE_NM)
_SHOT = F(c.SHOT_SPEED)
_SLOW, _FAST = F(c.RACKET_LINEAR_DAMPING), F(c.FAST_RACKET_LINEAR_DAMPING)
_FREE, _TURNED = F(c.RACKET_ANGULAR_DAMPING), F(c.TURNED_RACKET_ANGULAR_DAMPING)
_PUCK, _FAST_PUCK = F(c.PUCK_LINEAR_DAMPING), F(c.FAST_PUCK_LINEAR_DAMPING)


def _speed(state: Any, body: int) -> float:
    x, y = np.float64(state.velocity_x[body]), np.float64(state.velocity_y[body])
    return math.sqrt(x * x + y * y)


def push(state: Any, player: int, action_x: np.float32, action_y: np.float32) -> None:
    """Queue the force of a translation action, from -1 to 1 in x and y."""
    side = -1.0 if player else 1.0
    force_x, force_y = F(side) * _FORCE * action_x, F(side) * _FORCE * action_y
    x, y = np.float64(state.x[player]), np.float64(state.y[player])
    beyond = x - c.CENTRE_X
    velocity_x = np.float64(state.velocity_x[player])
    mass = np.float64(MASS[player])
    state.linear_damping[player] = _FAST
    if side * beyond > -c.STRIP_HALF_WIDTH:
        stop = -2 * velocity_x * mass / c.TIME_STEP_S if side * velocity_x > 0 else 0.0
        force_x = F(stop) + F(-side * beyond * velocity_x * mass / c.TIME_STEP_S)
    else:
        speed = _speed(state, player)
        if speed < c.MAX_RACKET_SPEED:
            state.linear_damping[player] = _SLOW
        else:
            next_x = velocity_x + np.float64(STEP_S * force_x / MASS[player])
            next_y = np.float64(state.velocity_y[player]) + np.float64(STEP_S * force_y / MASS[player])
            if math.sqrt(next_x * next_x + next_y * next_y) >= speed:
                return
    forward = side * beyond
    if (forward < -c.FAR_X and side * force_x < 0) or (forward > 0 and side * force_x > 0):
        state.velocity_x[player] = ZERO
        force_x = ZERO
    if (y > c.HIGHEST_Y and force_y > 0) or (y < c.LOWEST_Y and force_y < 0):
        state.velocity_y[player] = ZERO
        force_y = ZERO
    queue(state, player, force_x, force_y)


def queue(state: Any, body: int, force_x: np.float32, force_y: np.float32) -> None:
    """Let a force (N) act on a body in the next physics step."""
    wake(state, body)
    state.force_x[body] += force_x
    state.force_y[body] += force_y


def turn_racket(state: Any, player: int, action: np.float32) -> None:
    """Queue the torque of a rotation action, from -1 to 1; a racket turned too far is turned back instead."""
    angle, spin = np.float64(state.angle[player]), np.float64(state.spin[player])
    mass = np.float64(MASS[player])
    torque = _TORQUE * action
    state.angular_damping[player] = _FREE
    if abs(angle) > c.MAX_ANGLE:
        back = -0.1 * spin * mass / c.TIME_STEP_S if angle * spin > 0 else 0.0
        torque = F(back - 0.1 * angle * mass / c.TIME_STEP_S)
        state.angular_damping[player] = _TURNED
    wake(state, player)
    state.torque[player] += torque


def slow_down(state: Any) -> None:
    """Choose the puck's damping."""
    state.linear_damping[PUCK] = _FAST_PUCK if _speed(state, PUCK) > c.MAX_PUCK_SPEED else _PUCK


def hold(state: Any, player: int, shoot: np.float32) -> None:
    """Keep the puck at a racket that holds it for one more step, or shoot it."""
    if state.holds[player] <= 1:
        return
    teleport(state, PUCK, state.x[player], state.y[player], state.angle[PUCK])
    set_velocity(state, PUCK, state.velocity_x[player], state.velocity_y[player])
    state.holds[player] -= 1
    if state.holds[player] > 1 and shoot <= c.SHOOT_THRESHOLD:
        return
    side, angle = (-1.0 if player else 1.0), np.float64(state.angle[player])
    x, y = F(side * math.cos(angle)), F(side * math.sin(angle))
    mass = MASS[PUCK]
    queue(state, PUCK, x * mass / STEP_S * _SHOT, y * mass / STEP_S * _SHOT)
    state.holds[player] = 0


def set_velocity(state: Any, body: int, x: np.float32, y: np.float32) -> None:
    """Give a body a velocity, which wakes it if there is any."""
    if x * x + y * y > ZERO:
        wake(state, body)
    state.velocity_x[body] = x
    state.velocity_y[body] = y


def serve(state: Any, aim_x: float, aim_y: float) -> None:
    """Shoot the resting puck at a point."""
    x, y = F(aim_x) - state.x[PUCK], F(aim_y) - state.y[PUCK]
    distance = F(math.sqrt(x * x + y * y))
    mass = MASS[PUCK]
    queue(state, PUCK, x / distance * _SHOT * mass / STEP_S, y / distance * _SHOT * mass / STEP_S)
