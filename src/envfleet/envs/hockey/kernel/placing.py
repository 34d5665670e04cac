"""Putting rackets and puck of a compiled game somewhere: for comparisons with the Box2D game, and for drills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey.kernel.bodies import teleport
from envfleet.envs.hockey.kernel.drive import set_velocity
from envfleet.envs.hockey.kernel.shapes import PUCK, RACKET_ONE, RACKET_TWO, F

_POSE = 6  # numbers of one body


def place(state: Any, observation: Sequence[float], keep_mode: bool) -> None:
    """Put everything where an observation of player one says, as `HockeyEnv.set_state` does.

    Args:
        state: A record of the kernel's state; it is changed, uncompiled.
        observation: 18 numbers, 16 without `keep_mode`.
        keep_mode: Whether the hold counters are among them.
    """
    for racket, first in ((RACKET_ONE, 0), (RACKET_TWO, _POSE)):
        x, y, *others = observation[first : first + _POSE]
        place_body(state, racket, (x + c.CENTRE_X, y + c.CENTRE_Y, *others))
    x, y, velocity_x, velocity_y = observation[2 * _POSE : 2 * _POSE + 4]
    teleport(state, PUCK, F(x + c.CENTRE_X), F(y + c.CENTRE_Y), state.angle[PUCK])
    set_velocity(state, PUCK, F(velocity_x), F(velocity_y))
    if keep_mode:
        state.holds[:] = np.asarray(observation[16:18], np.int64)


def place_body(state: Any, body: int, pose: Sequence[float]) -> None:
    """Set x, y, angle, both velocity components and the spin of a body, in world coordinates."""
    x, y, angle, velocity_x, velocity_y, spin = (F(number) for number in pose)
    teleport(state, body, x, y, state.angle[body])
    teleport(state, body, x, y, angle)
    set_velocity(state, body, velocity_x, velocity_y)
    state.spin[body] = spin
