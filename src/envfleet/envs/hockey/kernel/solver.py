"""Contact solver of an island: impulses stop approach and apply friction, position corrections remove overlap.

Sequential impulses with warm starting, two points of a contact solved together as a linear complementarity problem, as
in Box2D (E. Catto, "Iterative Dynamics with Temporal Coherence" (2005); zlib licence, see NOTICE). Sweeps stop when one
changes nothing, for then no later one would.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey.kernel import shapes as s
from envfleet.envs.hockey.kernel.bodies import origin, rotated, turn
from envfleet.envs.hockey.kernel.pairs import fixtures
from envfleet.envs.hockey.kernel.shapes import HALF, NUM_MOVING, ONE, SLOP, ZERO, F
from envfleet.kernels import outlined

MAX_CONTACTS = 16
"""Largest number of contacts in one island: two rackets and a puck cannot have more."""

_BOUNCE_SPEED = F(1)  # m/s; slower approaches do not bounce
_MAX_CONDITION = F(1000)
_MAX_CORRECTION = F(0.2)  # m

Speeds = tuple[np.float32, np.float32, np.float32, np.float32, np.float32, np.float32]
"""Velocity x and y and spin of body A, then of body B."""


def add_contact(state: Any, place: int, pair: int) -> None:
    """Take a pair into the island that is being solved."""
    shape_a, shape_b = fixtures(state, pair)
    state.c_pair[place] = pair
    state.c_a[place], state.c_b[place] = s.BODY_OF[shape_a], s.BODY_OF[shape_b]


@outlined
def prepare(state: Any, count: int, is_warm: bool) -> None:
    """Compute what the sweeps need: arms, effective masses, and the speeds after bounces."""
    for k in range(count):
        pair = state.c_pair[k]
        num_points = state.num_points[pair]
        _locate(state, k, pair, num_points)
        for j in range(num_points):
            _prepare_point(state, k, 2 * k + j)
            state.c_normal_impulse[2 * k + j] = state.normal_impulse[2 * pair + j] if is_warm else ZERO
            state.c_tangent_impulse[2 * k + j] = state.tangent_impulse[2 * pair + j] if is_warm else ZERO
        state.c_points[k] = num_points
        if num_points == 2:
            _prepare_block(state, k)


def _locate(state: Any, k: int, pair: int, num_points: int) -> None:
    """Find the normal, and where the points are, seen from both centres of mass."""
    a, b = state.c_a[k], state.c_b[k]
    reach, other_reach = (s.REACH[b], s.REACH[a]) if state.is_face_b[pair] else (s.REACH[a], s.REACH[b])
    other, normal_x, normal_y, plane_x, plane_y = _find_face(state, k)
    other_x, other_y = origin(state, other)
    for j in range(num_points):
        x, y = rotated(state, other, state.point_x[2 * pair + j], state.point_y[2 * pair + j])
        point_x, point_y = x + other_x, y + other_y
        depth = reach - ((point_x - plane_x) * normal_x + (point_y - plane_y) * normal_y)
        middle_x = HALF * ((point_x + depth * normal_x) + (point_x - other_reach * normal_x))
        middle_y = HALF * ((point_y + depth * normal_y) + (point_y - other_reach * normal_y))
        state.c_arm_ax[2 * k + j] = middle_x - state.center_x[a]
        state.c_arm_ay[2 * k + j] = middle_y - state.center_y[a]
        state.c_arm_bx[2 * k + j] = middle_x - state.center_x[b]
        state.c_arm_by[2 * k + j] = middle_y - state.center_y[b]
    state.c_normal_x[k] = -normal_x if state.is_face_b[pair] else normal_x
    state.c_normal_y[k] = -normal_y if state.is_face_b[pair] else normal_y


def _find_face(state: Any, k: int) -> tuple[int, np.float32, np.float32, np.float32, np.float32]:
    """Return the body that does not have the face of a contact, and the face: its normal, and a point on it."""
    a, b, pair = state.c_a[k], state.c_b[k], state.c_pair[k]
    face, other = (b, a) if state.is_face_b[pair] else (a, b)
    x, y = origin(state, face)
    normal_x, normal_y = rotated(state, face, state.normal_x[pair], state.normal_y[pair])
    plane_x, plane_y = rotated(state, face, state.plane_x[pair], state.plane_y[pair])
    return other, normal_x, normal_y, plane_x + x, plane_y + y


def _prepare_point(state: Any, k: int, point: int) -> None:
    a, b, pair = state.c_a[k], state.c_b[k], state.c_pair[k]
    normal_x, normal_y = state.c_normal_x[k], state.c_normal_y[k]
    inertia_a, inertia_b = s.INVERSE_INERTIA[a], s.INVERSE_INERTIA[b]
    masses = s.INVERSE_MASS[a] + s.INVERSE_MASS[b]
    lever_a, lever_b = _moments(state, point, normal_x, normal_y)
    stiffness = masses + inertia_a * lever_a * lever_a + inertia_b * lever_b * lever_b
    state.c_normal_mass[point] = ONE / stiffness if stiffness > ZERO else ZERO
    lever_a, lever_b = _moments(state, point, normal_y, -normal_x)
    stiffness = masses + inertia_a * lever_a * lever_a + inertia_b * lever_b * lever_b
    state.c_tangent_mass[point] = ONE / stiffness if stiffness > ZERO else ZERO
    speed = _approach(state, point, _read_speeds(state, k), normal_x, normal_y)
    state.c_bias[point] = -s.RESTITUTION[pair] * speed if speed < -_BOUNCE_SPEED else ZERO


def _prepare_block(state: Any, k: int) -> None:
    """Prepare the matrix by which two points act on each other; the second is left out where it cannot be inverted."""
    a, b, one, two = state.c_a[k], state.c_b[k], 2 * k, 2 * k + 1
    normal_x, normal_y = state.c_normal_x[k], state.c_normal_y[k]
    inertia_a, inertia_b = s.INVERSE_INERTIA[a], s.INVERSE_INERTIA[b]
    masses = s.INVERSE_MASS[a] + s.INVERSE_MASS[b]
    one_a, one_b = _moments(state, one, normal_x, normal_y)
    two_a, two_b = _moments(state, two, normal_x, normal_y)
    k11 = masses + inertia_a * one_a * one_a + inertia_b * one_b * one_b
    k22 = masses + inertia_a * two_a * two_a + inertia_b * two_b * two_b
    k12 = masses + inertia_a * one_a * two_a + inertia_b * one_b * two_b
    if not k11 * k11 < _MAX_CONDITION * (k11 * k22 - k12 * k12):
        state.c_points[k] = 1
        return
    determinant = k11 * k22 - k12 * k12
    inverse = ONE / determinant if determinant != ZERO else ZERO
    state.c_k11[k], state.c_k12[k], state.c_k22[k] = k11, k12, k22
    state.c_i11[k], state.c_i12[k], state.c_i22[k] = inverse * k22, -inverse * k12, inverse * k11


@outlined
def warm_start(state: Any, count: int) -> None:
    """Apply the impulses of the last step."""
    for k in range(count):
        normal_x, normal_y = state.c_normal_x[k], state.c_normal_y[k]
        speeds = _read_speeds(state, k)
        for j in range(state.c_points[k]):
            point = 2 * k + j
            along, across = state.c_normal_impulse[point], state.c_tangent_impulse[point]
            push_x, push_y = along * normal_x + across * normal_y, along * normal_y + across * -normal_x
            speeds = _pushed(state, k, point, speeds, push_x, push_y)
        _write_speeds(state, k, speeds)


def _read_speeds(state: Any, k: int) -> Speeds:
    a, b = state.c_a[k], state.c_b[k]
    ax, ay, bx, by = state.velocity_x[a], state.velocity_y[a], state.velocity_x[b], state.velocity_y[b]
    return ax, ay, state.spin[a], bx, by, state.spin[b]


def _write_speeds(state: Any, k: int, speeds: Speeds) -> None:
    a, b = state.c_a[k], state.c_b[k]
    state.velocity_x[a], state.velocity_y[a], state.spin[a] = speeds[0], speeds[1], speeds[2]
    state.velocity_x[b], state.velocity_y[b], state.spin[b] = speeds[3], speeds[4], speeds[5]


@outlined
def solve_velocities(state: Any, count: int) -> None:
    """Sweep over all contacts until nothing changes, or often enough."""
    for _ in range(c.VELOCITY_ITERATIONS):
        is_changed = False
        for k in range(count):
            is_changed |= _solve_contact(state, k)
        if not is_changed:
            break


def store_impulses(state: Any, count: int) -> None:
    """Keep the impulses for the next step."""
    for k in range(count):
        pair = state.c_pair[k]
        for j in range(state.c_points[k]):
            state.normal_impulse[2 * pair + j] = state.c_normal_impulse[2 * k + j]
            state.tangent_impulse[2 * pair + j] = state.c_tangent_impulse[2 * k + j]


@outlined
def _solve_contact(state: Any, k: int) -> bool:
    """Solve one contact in one sweep: friction first, then the normal; returns whether any impulse changed."""
    first = 2 * k
    speeds, is_changed = _rub(state, k, first, _read_speeds(state, k))
    if state.c_points[k] == 1:
        normal_x, normal_y = state.c_normal_x[k], state.c_normal_y[k]
        old = state.c_normal_impulse[first]
        speed = _approach(state, first, speeds, normal_x, normal_y)
        change = -state.c_normal_mass[first] * (speed - state.c_bias[first])
        new = max(old + change, ZERO)
        state.c_normal_impulse[first] = new
        change = new - old
        is_changed |= change != ZERO
        speeds = _pushed(state, k, first, speeds, change * normal_x, change * normal_y)
    else:
        second, is_pushed = _rub(state, k, first + 1, speeds)
        speeds, is_blocked = _block(state, k, second)
        is_changed |= is_pushed | is_blocked
    _write_speeds(state, k, speeds)
    return is_changed


def _approach(state: Any, point: int, speeds: Speeds, along_x: np.float32, along_y: np.float32) -> np.float32:
    """Return the speed of body B against body A at a point, in a direction."""
    vax, vay, wa, vbx, vby, wb = speeds
    x = ((vbx + -wb * state.c_arm_by[point]) - vax) - -wa * state.c_arm_ay[point]
    y = ((vby + wb * state.c_arm_bx[point]) - vay) - wa * state.c_arm_ax[point]
    return F(x * along_x + y * along_y)


def _moments(state: Any, point: int, push_x: np.float32, push_y: np.float32) -> tuple[np.float32, np.float32]:
    """Return the moments about both bodies of an impulse at a point."""
    about_a = state.c_arm_ax[point] * push_y - state.c_arm_ay[point] * push_x
    return about_a, state.c_arm_bx[point] * push_y - state.c_arm_by[point] * push_x


def _pushed(state: Any, k: int, point: int, speeds: Speeds, push_x: np.float32, push_y: np.float32) -> Speeds:
    """Return the velocities after an impulse at a point."""
    turn_a, turn_b = _moments(state, point, push_x, push_y)
    return _changed(state, k, speeds, push_x, push_y, turn_a, turn_b)


def _changed(
    state: Any, k: int, speeds: Speeds, push_x: np.float32, push_y: np.float32, turn_a: np.float32, turn_b: np.float32
) -> Speeds:
    """Return the velocities after an impulse (N s) and its moments about both bodies: subtracted from A, added to B."""
    a, b = state.c_a[k], state.c_b[k]
    return (
        speeds[0] - s.INVERSE_MASS[a] * push_x,
        speeds[1] - s.INVERSE_MASS[a] * push_y,
        speeds[2] - s.INVERSE_INERTIA[a] * turn_a,
        speeds[3] + s.INVERSE_MASS[b] * push_x,
        speeds[4] + s.INVERSE_MASS[b] * push_y,
        speeds[5] + s.INVERSE_INERTIA[b] * turn_b,
    )


def _rub(state: Any, k: int, point: int, speeds: Speeds) -> tuple[Speeds, bool]:
    """Friction at one point, bounded by what presses there."""
    tangent_x, tangent_y = state.c_normal_y[k], -state.c_normal_x[k]
    change = state.c_tangent_mass[point] * -_approach(state, point, speeds, tangent_x, tangent_y)
    most, old = s.FRICTION[state.c_pair[k]] * state.c_normal_impulse[point], state.c_tangent_impulse[point]
    new = max(-most, min(old + change, most))
    state.c_tangent_impulse[point] = new
    change = new - old
    return _pushed(state, k, point, speeds, change * tangent_x, change * tangent_y), change != ZERO


def _block(state: Any, k: int, speeds: Speeds) -> tuple[Speeds, bool]:
    """Apply the normal impulses of two points at once; returns the velocities, and whether any impulse changed."""
    one, two = 2 * k, 2 * k + 1
    normal_x, normal_y = state.c_normal_x[k], state.c_normal_y[k]
    old_1, old_2 = state.c_normal_impulse[one], state.c_normal_impulse[two]
    speed_1 = _approach(state, one, speeds, normal_x, normal_y)
    speed_2 = _approach(state, two, speeds, normal_x, normal_y)
    k11, k12, k22 = state.c_k11[k], state.c_k12[k], state.c_k22[k]
    goal_1 = (speed_1 - state.c_bias[one]) - (k11 * old_1 + k12 * old_2)
    goal_2 = (speed_2 - state.c_bias[two]) - (k12 * old_1 + k22 * old_2)
    new_1, new_2 = _complement(state, k, goal_1, goal_2, old_1, old_2)
    state.c_normal_impulse[one], state.c_normal_impulse[two] = new_1, new_2
    change_1, change_2 = new_1 - old_1, new_2 - old_2
    one_x, one_y, two_x, two_y = change_1 * normal_x, change_1 * normal_y, change_2 * normal_x, change_2 * normal_y
    one_a, one_b = _moments(state, one, one_x, one_y)
    two_a, two_b = _moments(state, two, two_x, two_y)
    changed = _changed(state, k, speeds, one_x + two_x, one_y + two_y, one_a + two_a, one_b + two_b)
    return changed, (change_1 != ZERO) | (change_2 != ZERO)


def _complement(
    state: Any, k: int, goal: np.float32, goal_2: np.float32, old: np.float32, old_2: np.float32
) -> tuple[np.float32, np.float32]:
    """Impulses that neither pull nor leave a point approaching: both points push, either, or none; else no change."""
    i11, i12, i22 = state.c_i11[k], state.c_i12[k], state.c_i22[k]
    new, new_2 = -(i11 * goal + i12 * goal_2), -(i12 * goal + i22 * goal_2)
    if new >= ZERO and new_2 >= ZERO:
        return new, new_2
    k12 = state.c_k12[k]
    new = -state.c_normal_mass[2 * k] * goal
    if new >= ZERO and k12 * new + goal_2 >= ZERO:
        return new, ZERO
    new_2 = -state.c_normal_mass[2 * k + 1] * goal_2
    if new_2 >= ZERO and k12 * new_2 + goal >= ZERO:
        return ZERO, new_2
    if goal >= ZERO and goal_2 >= ZERO:
        return ZERO, ZERO
    return old, old_2


# ------------------------------------------------------------------ positions


@outlined
def correct_positions(state: Any, count: int, share: np.float32, stop: np.float32, num_sweeps: int) -> bool:
    """Push apart what has sunk into each other, by moving bodies rather than by speed.

    Args:
        state: The game.
        count: Number of contacts of the island.
        share: Share of an overlap that is corrected at once.
        stop: A sweep over all contacts was enough if nothing overlaps by more than this (m, below 0).
        num_sweeps: At most.

    Returns:
        Whether one was enough.
    """
    for _ in range(num_sweeps):
        least = ZERO
        for k in range(count):
            pair = state.c_pair[k]
            for j in range(state.num_points[pair]):
                least = min(least, _correct_point(state, k, 2 * pair + j, share))
        if least >= stop:
            return True
    return False


def _correct_point(state: Any, k: int, point: int, share: np.float32) -> np.float32:
    """Move two bodies apart at one point; returns the separation before."""
    a, b, pair = state.c_a[k], state.c_b[k], state.c_pair[k]
    other, normal_x, normal_y, plane_x, plane_y = _find_face(state, k)
    other_x, other_y = origin(state, other)
    x, y = rotated(state, other, state.point_x[point], state.point_y[point])
    x, y = x + other_x, y + other_y
    separation = ((x - plane_x) * normal_x + (y - plane_y) * normal_y) - s.REACH[a] - s.REACH[b]
    if state.is_face_b[pair]:
        normal_x, normal_y = -normal_x, -normal_y

    mass_a, inertia_a = s.INVERSE_MASS[a], s.INVERSE_INERTIA[a]
    mass_b, inertia_b = s.INVERSE_MASS[b], s.INVERSE_INERTIA[b]
    ax, ay, bx, by = x - state.center_x[a], y - state.center_y[a], x - state.center_x[b], y - state.center_y[b]
    correction = max(-_MAX_CORRECTION, min(share * (separation + SLOP), ZERO))
    lever_a, lever_b = ax * normal_y - ay * normal_x, bx * normal_y - by * normal_x
    stiffness = mass_a + mass_b + inertia_a * lever_a * lever_a + inertia_b * lever_b * lever_b
    impulse = -correction / stiffness if stiffness > ZERO else ZERO
    push_x, push_y = impulse * normal_x, impulse * normal_y
    if a < NUM_MOVING:
        state.center_x[a] -= mass_a * push_x
        state.center_y[a] -= mass_a * push_y
        _rotate(state, a, -(inertia_a * (ax * push_y - ay * push_x)))
    state.center_x[b] += mass_b * push_x
    state.center_y[b] += mass_b * push_y
    _rotate(state, b, inertia_b * (bx * push_y - by * push_x))
    return F(separation)


def _rotate(state: Any, body: int, angle: np.float32) -> None:
    if angle != ZERO:
        state.angle[body] += angle
        turn(state, body)
