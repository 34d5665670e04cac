"""Leaving nothing of the last game in the state: neither what pairs were like, nor what was computed there.

No game depends on it, but equal games then have equal states.
"""

from __future__ import annotations

from typing import Any

from envfleet.envs.hockey.kernel.shapes import NUM_BODIES, NUM_MOVING, NUM_PAIRS, ZERO
from envfleet.envs.hockey.kernel.velocities import MAX_CONTACTS


def clear(state: Any) -> None:
    """Set everything to zero that a new game does not set anyway."""
    for number in range(8):
        state.actions[number] = ZERO
    for number in range(18):
        state.seen[number] = ZERO
    for player in range(2):
        state.phases[player] = 0.0
    for body in range(NUM_BODIES):
        state.is_here[body] = 0
    for body in range(NUM_MOVING):
        state.is_moved[body] = 0
        state.waiting[body] = 0
        state.island[body] = 0
    for pair in range(NUM_PAIRS):
        _clear_pair(state, pair)
    for place in range(MAX_CONTACTS):
        _clear_contact(state, place)
    state.simplex_size = 0
    state.simplex_metric = ZERO
    for corner in range(4):
        _clear_corner(state, corner)


def _clear_pair(state: Any, pair: int) -> None:
    state.pairs[pair] = 0
    state.is_touching[pair], state.is_enabled[pair], state.is_timed[pair] = 0, 0, 0
    state.is_taken[pair], state.is_face_b[pair] = 0, 0
    state.num_events[pair], state.num_points[pair] = 0, 0
    state.time[pair] = ZERO
    state.normal_x[pair], state.normal_y[pair] = ZERO, ZERO
    state.plane_x[pair], state.plane_y[pair] = ZERO, ZERO
    for point in (2 * pair, 2 * pair + 1):
        state.point_x[point], state.point_y[point] = ZERO, ZERO
        state.feature[point] = 0
        state.normal_impulse[point], state.tangent_impulse[point] = ZERO, ZERO


def _clear_contact(state: Any, place: int) -> None:
    state.c_pair[place], state.c_a[place], state.c_b[place], state.c_points[place] = 0, 0, 0, 0
    state.c_reach_a[place], state.c_reach_b[place] = ZERO, ZERO
    state.c_normal_x[place], state.c_normal_y[place] = ZERO, ZERO
    state.c_k11[place], state.c_k12[place], state.c_k22[place] = ZERO, ZERO, ZERO
    state.c_i11[place], state.c_i12[place], state.c_i22[place] = ZERO, ZERO, ZERO
    for point in (2 * place, 2 * place + 1):
        state.c_arm_ax[point], state.c_arm_ay[point] = ZERO, ZERO
        state.c_arm_bx[point], state.c_arm_by[point] = ZERO, ZERO
        state.c_normal_mass[point], state.c_tangent_mass[point] = ZERO, ZERO
        state.c_bias[point] = ZERO
        state.c_normal_impulse[point], state.c_tangent_impulse[point] = ZERO, ZERO


def _clear_corner(state: Any, corner: int) -> None:
    state.simplex_a[corner], state.simplex_b[corner] = 0, 0
    state.simplex_ax[corner], state.simplex_ay[corner] = ZERO, ZERO
    state.simplex_bx[corner], state.simplex_by[corner] = ZERO, ZERO
    state.simplex_x[corner], state.simplex_y[corner] = ZERO, ZERO
    state.simplex_share[corner] = ZERO
