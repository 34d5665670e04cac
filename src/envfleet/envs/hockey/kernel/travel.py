"""Moving a body by its velocities for a while."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from envfleet.envs.hockey.kernel.shapes import (
    MAX_ROTATION,
    MAX_ROTATION_SQUARED,
    MAX_TRANSLATION,
    MAX_TRANSLATION_SQUARED,
    F,
)


def travel(state: Any, body: int, time_s: np.float32) -> None:
    """Move the centre of mass and turn by the velocities, which are cut first where they are too large."""
    velocity_x, velocity_y, spin = state.velocity_x[body], state.velocity_y[body], state.spin[body]
    step_x, step_y, angle = time_s * velocity_x, time_s * velocity_y, time_s * spin
    squared = step_x * step_x + step_y * step_y
    if squared > MAX_TRANSLATION_SQUARED:
        share = MAX_TRANSLATION / F(math.sqrt(squared))
        velocity_x, velocity_y = velocity_x * share, velocity_y * share
        state.velocity_x[body] = velocity_x
        state.velocity_y[body] = velocity_y
    if angle * angle > MAX_ROTATION_SQUARED:
        spin *= MAX_ROTATION / abs(angle)
        state.spin[body] = spin
    state.centre_x[body] += time_s * velocity_x
    state.centre_y[body] += time_s * velocity_y
    state.angle[body] += time_s * spin
