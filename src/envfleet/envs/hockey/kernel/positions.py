"""Pushing apart what has sunk into each other, by moving bodies rather than by speed.

After Box2D's nonlinear Gauss-Seidel (E. Catto, zlib licence; see NOTICE).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from envfleet.envs.hockey.kernel.bodies import origin, turn
from envfleet.envs.hockey.kernel.shapes import INVERSE_INERTIA, INVERSE_MASS, NUM_MOVING, SLOP, ZERO, F
from envfleet.kernels import outlined

_MAX_CORRECTION = F(0.2)  # m


@outlined
def correct_positions(state: Any, count: int, share: np.float32, stop: np.float32) -> bool:
    """Sweep once over all contacts.

    Args:
        state: The game.
        count: How many contacts the island has.
        share: How much of an overlap is taken away at once.
        stop: The sweep was enough if nothing overlaps by more than this (m, below 0).

    Returns:
        Whether it was enough.
    """
    least = ZERO
    for k in range(count):
        pair = state.c_pair[k]
        for j in range(state.num_points[pair]):
            least = min(least, _correct_point(state, k, 2 * pair + j, share))
    return bool(least >= stop)


def _correct_point(state: Any, k: int, point: int, share: np.float32) -> np.float32:
    """Move two bodies apart at one point; returns the separation before."""
    a, b, pair = state.c_a[k], state.c_b[k], state.c_pair[k]
    face, other = (b, a) if state.is_face_b[pair] else (a, b)
    face_x, face_y = origin(state, face)
    other_x, other_y = origin(state, other)
    cosine, sine = state.cosine[face], state.sine[face]
    normal_x = cosine * state.normal_x[pair] - sine * state.normal_y[pair]
    normal_y = sine * state.normal_x[pair] + cosine * state.normal_y[pair]
    plane_x = (cosine * state.plane_x[pair] - sine * state.plane_y[pair]) + face_x
    plane_y = (sine * state.plane_x[pair] + cosine * state.plane_y[pair]) + face_y
    cosine, sine = state.cosine[other], state.sine[other]
    x = (cosine * state.point_x[point] - sine * state.point_y[point]) + other_x
    y = (sine * state.point_x[point] + cosine * state.point_y[point]) + other_y
    separation = ((x - plane_x) * normal_x + (y - plane_y) * normal_y) - state.c_reach_a[k] - state.c_reach_b[k]
    if state.is_face_b[pair]:
        normal_x, normal_y = -normal_x, -normal_y

    mass_a, inertia_a, mass_b, inertia_b = INVERSE_MASS[a], INVERSE_INERTIA[a], INVERSE_MASS[b], INVERSE_INERTIA[b]
    ax, ay, bx, by = x - state.centre_x[a], y - state.centre_y[a], x - state.centre_x[b], y - state.centre_y[b]
    correction = max(-_MAX_CORRECTION, min(share * (separation + SLOP), ZERO))
    lever_a, lever_b = ax * normal_y - ay * normal_x, bx * normal_y - by * normal_x
    stiffness = mass_a + mass_b + inertia_a * lever_a * lever_a + inertia_b * lever_b * lever_b
    impulse = -correction / stiffness if stiffness > ZERO else ZERO
    push_x, push_y = impulse * normal_x, impulse * normal_y
    if a < NUM_MOVING:
        state.centre_x[a] -= mass_a * push_x
        state.centre_y[a] -= mass_a * push_y
        _rotate(state, a, -(inertia_a * (ax * push_y - ay * push_x)))
    state.centre_x[b] += mass_b * push_x
    state.centre_y[b] += mass_b * push_y
    _rotate(state, b, inertia_b * (bx * push_y - by * push_x))
    return F(separation)


def _rotate(state: Any, body: int, angle: np.float32) -> None:
    if angle != ZERO:
        state.angle[body] += angle
        turn(state, body)
