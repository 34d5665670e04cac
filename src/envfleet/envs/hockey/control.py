"""From actions to forces: what happens to rackets and puck before each physics step.

The public environment mixes float32 and float64; agents were trained on what came of it, so each rounding below is part
of the rules: forces are float32, everything read from a body is float32 widened to float64.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from envfleet.envs.hockey import constants as c

if TYPE_CHECKING:
    from envfleet.envs.hockey.world import Body

_FLOAT32_STEP = np.float32(c.TIME_STEP_S)
_SIDES = (1.0, -1.0)


def push(racket: Body, player: int, action_x: np.float32, action_y: np.float32) -> None:
    """Apply a translation action.

    Args:
        racket: The player's racket.
        player: 0 (left) or 1 (right; sees the field rotated by 180 degrees).
        action_x: From -1 to 1, towards the opponent if positive.
        action_y: From -1 to 1.
    """
    side = _SIDES[player]
    force_x = np.float32(side * c.TRANSLATION_FORCE_N) * action_x
    force_y = np.float32(side * c.TRANSLATION_FORCE_N) * action_y
    beyond = racket.position.x - c.CENTRE_X
    velocity_x, velocity_y = racket.velocity.x, racket.velocity.y
    damping = c.FAST_RACKET_LINEAR_DAMPING
    if side * beyond > -c.STRIP_HALF_WIDTH:
        force_x = _spring(side, beyond, velocity_x, racket.mass)
    else:
        speed = math.sqrt(velocity_x**2 + velocity_y**2)
        if speed < c.MAX_RACKET_SPEED:
            damping = c.RACKET_LINEAR_DAMPING
        else:
            next_x = velocity_x + float(_FLOAT32_STEP * force_x / np.float32(racket.mass))
            next_y = velocity_y + float(_FLOAT32_STEP * force_y / np.float32(racket.mass))
            if math.sqrt(next_x**2 + next_y**2) >= speed:
                racket.body.linearDamping = damping
                return
    if _is_blocked_x(side, beyond, force_x):
        racket.velocity.x, force_x = 0.0, np.float32(0)
    if _is_blocked_y(racket.position.y, force_y):
        racket.velocity.y, force_y = 0.0, np.float32(0)
    racket.body.linearDamping = damping
    racket.body.ApplyForceToCenter((float(force_x), float(force_y)), True)


def _spring(side: float, beyond: float, velocity_x: float, mass: float) -> np.float32:
    """Force (N) that keeps a racket off the other half, whatever the action."""
    stop = -2 * velocity_x * mass / c.TIME_STEP_S if side * velocity_x > 0 else 0.0
    return np.float32(stop) + np.float32(-side * beyond * velocity_x * mass / c.TIME_STEP_S)


def _is_blocked_x(side: float, beyond: float, force_x: np.float32) -> bool:
    """Return whether a racket leaves its half, on either side of it; `beyond` is its x seen from the centre line."""
    forward = side * beyond
    return bool((forward < -c.FAR_X and side * force_x < 0) or (forward > 0 and side * force_x > 0))


def _is_blocked_y(y: float, force_y: np.float32) -> bool:
    return bool((y > c.HIGHEST_Y and force_y > 0) or (y < c.LOWEST_Y and force_y < 0))


def turn(racket: Body, action: np.float32) -> None:
    """Apply a rotation action from -1 to 1; a racket turned too far is turned back instead."""
    body = racket.body
    angle = body.angle
    if abs(angle) > c.MAX_ANGLE:
        spin = body.angularVelocity
        torque = -0.1 * spin * racket.mass / c.TIME_STEP_S if angle * spin > 0 else 0.0
        torque -= 0.1 * angle * racket.mass / c.TIME_STEP_S
        body.angularDamping = c.TURNED_RACKET_ANGULAR_DAMPING
    else:
        torque = float(np.float32(c.TORQUE_NM) * action)
        body.angularDamping = c.RACKET_ANGULAR_DAMPING
    body.ApplyTorque(torque, True)


def slow_down(puck: Body) -> None:
    """Choose the puck's damping: a puck faster than any racket's shot lasts is slowed down at once."""
    speed = math.sqrt(puck.velocity.x**2 + puck.velocity.y**2)
    puck.body.linearDamping = c.FAST_PUCK_LINEAR_DAMPING if speed > c.MAX_PUCK_SPEED else c.PUCK_LINEAR_DAMPING


def hold(racket: Body, puck: Body, player: int, steps_left: int, action: np.float32) -> int:
    """Keep the puck at a racket for one more step, or shoot it.

    Args:
        racket: The player's racket.
        puck: The puck; it is moved to the racket and takes its velocity.
        player: 0 or 1.
        steps_left: The player's hold counter; nothing happens if it is below 2.
        action: The shoot action; above 0.5 the puck is shot.

    Returns:
        The new hold counter.
    """
    if steps_left <= 1:
        return steps_left
    puck.body.position = racket.body.position
    puck.body.linearVelocity = racket.body.linearVelocity
    steps_left -= 1
    if steps_left > 1 and action <= c.SHOOT_THRESHOLD:
        return steps_left
    side, angle = _SIDES[player], racket.body.angle
    x, y = np.float32(side * math.cos(angle)), np.float32(side * math.sin(angle))
    mass, factor = np.float32(puck.mass), np.float32(c.SHOT_SPEED)
    _queue(puck, x * mass / _FLOAT32_STEP * factor, y * mass / _FLOAT32_STEP * factor)
    return 0


def serve(puck: Body, aim: c.Point) -> None:
    """Shoot the resting puck at a point."""
    x, y = np.float32(aim[0]) - np.float32(puck.position.x), np.float32(aim[1]) - np.float32(puck.position.y)
    distance = np.sqrt(x * x + y * y)
    mass, factor = np.float32(puck.mass), np.float32(c.SHOT_SPEED)
    _queue(puck, x / distance * factor * mass / _FLOAT32_STEP, y / distance * factor * mass / _FLOAT32_STEP)


def _queue(puck: Body, force_x: np.float32, force_y: np.float32) -> None:
    """Apply a force in the next physics step."""
    puck.body.ApplyForceToCenter((float(force_x), float(force_y)), True)
