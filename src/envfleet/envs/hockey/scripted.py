"""How the scripted player acts: chase the puck from behind, else go back to the goal, swinging the racket all the time.

Pure functions of observation and phase, in float64 as in the public environment: one for a single player, one for many
at once. Both give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.hockey import constants as c

_AWAY_SPEED = 0.5  # the puck counts as flying away from this speed on
_CHASE_WIDTH = 0.5
_LEAD_X, _LEAD_Y = 0.2, 0.1
_HOME_X = -3.5
_BRAKE_S = (0.1, 0.1, 1.0)  # brake if this close to the target in time
_GAIN_DIVISORS = (1, 5, 2)
_LAST_HOLD_STEPS = 7  # shoots when it may hold the puck for less


def scripted_action(observation: Sequence[float], weak: bool, keep_mode: bool, phase: float) -> list[float]:
    """Compute one action.

    Args:
        observation: The player's own view, 16 or 18 numbers.
        weak: Whether it is the weak player, whose gain is a twentieth.
        keep_mode: Whether players can hold the puck.
        phase: Of the swing (radians).

    Returns:
        Force x, force y, torque and, in `keep_mode`, shoot.
    """
    o = observation
    target_x, target_y = _HOME_X, 0.0
    if o[14] < _AWAY_SPEED:
        target_y = o[13]
        if o[0] < o[12] and abs(o[1] - o[13]) < _CHASE_WIDTH:
            distance = math.sqrt((o[0] - o[12]) ** 2 + (o[1] - o[13]) ** 2)
            target_x, target_y = o[12] + _LEAD_X, o[13] + distance * o[15] * _LEAD_Y
    gain = c.WEAK_GAIN if weak else c.STRONG_GAIN
    errors = (target_x - o[0], target_y - o[1], c.MAX_ANGLE * float(np.sin(phase)) - o[2])
    action = []
    for error, velocity, brake_s, divisor in zip(errors, o[3:6], _BRAKE_S, _GAIN_DIVISORS, strict=True):
        shifted = velocity + 0.01
        is_braking = shifted != 0 and abs(error / shifted) < brake_s
        force = error * (gain / divisor) - (c.DAMPING_GAIN * velocity if is_braking else 0.0)
        action.append(min(max(force, -1.0), 1.0))
    if keep_mode:
        action.append(1.0 if 0 < o[16] < _LAST_HOLD_STEPS else 0.0)
    return action


def scripted_actions(
    observations: NDArray[np.floating], weak: bool, keep_mode: bool, phases: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Compute the actions of many players.

    Args:
        observations: Their own views, shape `(N, 18)` or `(N, 16)`.
        weak: As for one.
        keep_mode: As for one.
        phases: Shape `(N,)`, radians.

    Returns:
        Actions, shape `(N, 4)`, or `(N, 3)` without `keep_mode`.
    """
    o = np.asarray(observations, np.float64)
    offset = o[:, 0:2] - o[:, 12:14]
    is_coming = o[:, 14] < _AWAY_SPEED
    is_chasing = is_coming & (offset[:, 0] < 0) & (np.abs(offset[:, 1]) < _CHASE_WIDTH)
    distance = np.sqrt(offset[:, 0] ** 2 + offset[:, 1] ** 2)
    target = np.empty((len(o), 3))
    target[:, 0] = np.where(is_chasing, o[:, 12] + _LEAD_X, _HOME_X)
    target[:, 1] = np.where(is_coming, o[:, 13] + np.where(is_chasing, distance * o[:, 15] * _LEAD_Y, 0.0), 0.0)
    target[:, 2] = c.MAX_ANGLE * np.sin(phases)
    errors, velocities = target - o[:, 0:3], o[:, 3:6]
    with np.errstate(divide="ignore", invalid="ignore"):
        is_braking = np.abs(errors / (velocities + 0.01)) < _BRAKE_S
    gains = (c.WEAK_GAIN if weak else c.STRONG_GAIN) / np.array(_GAIN_DIVISORS)
    actions = np.zeros((len(o), 4 if keep_mode else 3))
    actions[:, :3] = np.clip(errors * gains - c.DAMPING_GAIN * velocities * is_braking, -1.0, 1.0)
    if keep_mode:
        actions[:, 3] = (o[:, 16] > 0) & (o[:, 16] < _LAST_HOLD_STEPS)
    return actions
