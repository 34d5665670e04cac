"""Time of impact: when a moving body first touches a static one within a step.

Conservative advancement as in Box2D (E. Catto, "Continuous Collision" (GDC 2013); zlib licence, see NOTICE): along the
axis between the closest features, find when the deepest point comes near enough; look for the closest features again
from there on; until they are near enough, or never are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from envfleet.envs.hockey.kernel import shapes as s
from envfleet.envs.hockey.kernel.distance import Pose, distance, moved, support
from envfleet.envs.hockey.kernel.pairs import fixtures
from envfleet.envs.hockey.kernel.shapes import EPSILON, HALF, ONE, PUCK, SLOP, ZERO, F
from envfleet.envs.hockey.kernel.sines import sincos
from envfleet.kernels import outlined

_TOLERANCE = F(0.25) * SLOP
_OVERLAP = F(3) * SLOP
_TURN = F(2) * F(math.pi)
_MAX_LOOKS, _MAX_PUSHES, _MAX_ROOTS = 20, 16, 50
_NEVER = F(-1)
_CORNERS, _FACE_OF_A, _FACE_OF_B = 0, 1, 2

Motion = tuple[int, np.float32, np.float32]
"""A body, and its angle at both ends of its sweep."""

Axis = tuple[int, np.float32, np.float32, np.float32, np.float32]
"""What it belongs to, its direction, and a point on the face it belongs to."""


@outlined
def time_of_impact(state: Any, pair: int) -> np.float32:
    """Share of the sweep after which the two shapes of a pair touch; -1 if they do not, or overlap from the start."""
    a, b = fixtures(state, pair)
    body = s.BODY_OF[b]
    target = max(SLOP, (s.RADIUS[a] + s.RADIUS[b]) - _OVERLAP)
    turns = _TURN * F(math.floor(state.start_angle[body] / _TURN))
    motion = (body, state.start_angle[body] - turns, state.angle[body] - turns)
    begin = ZERO
    state.simplex_size = 0
    for _ in range(_MAX_LOOKS):
        a_x, a_y = _center(state, s.BODY_OF[a], begin)
        pose = _pose(state, motion, begin)
        apart = distance(state, a, a_x, a_y, b, pose)
        if apart <= ZERO:
            return _NEVER
        if apart < target + _TOLERANCE:
            return begin
        axis = _find_axis(state, a, a_x, a_y, b, pose)
        is_over, begin = _push_back(state, a, b, motion, axis, target, begin)
        if is_over:
            return begin
    return _NEVER


def _push_back(
    state: Any, a: int, b: int, motion: Motion, axis: Axis, target: np.float32, begin: np.float32
) -> tuple[bool, np.float32]:
    """Find when the shapes are near enough along an axis.

    Returns:
        Whether that settles it, and the time, or from when on to look for another axis.
    """
    end = ONE
    for _ in range(_MAX_PUSHES):
        separation_end, on_a, on_b = _deepest(state, a, b, motion, axis, end)
        if separation_end > target + _TOLERANCE:
            return True, _NEVER
        if separation_end > target - _TOLERANCE:
            return False, end
        separation = _separation(state, a, b, motion, axis, on_a, on_b, begin)
        if separation < target - _TOLERANCE:
            return True, _NEVER
        if separation <= target + _TOLERANCE:
            return True, begin
        low, high = begin, end
        for root in range(_MAX_ROOTS):
            if root & 1:
                time = low + (target - separation) * (high - low) / (separation_end - separation)
            else:
                time = HALF * (low + high)
            separation_now = _separation(state, a, b, motion, axis, on_a, on_b, time)
            if abs(separation_now - target) < _TOLERANCE:
                end = time
                break
            if separation_now > target:
                low, separation = time, separation_now
            else:
                high, separation_end = time, separation_now
    return False, begin


def _center(state: Any, body: int, time: np.float32) -> tuple[np.float32, np.float32]:
    """Return where the centre of mass is at a time of the sweep; what stands is rounded as what moves."""
    left = ONE - time
    x = left * state.start_x[body] + time * state.center_x[body]
    return x, left * state.start_y[body] + time * state.center_y[body]


def _pose(state: Any, motion: Motion, time: np.float32) -> Pose:
    """Origin, cosine and sine of the moving body at a time of its sweep."""
    body, start_angle, end_angle = motion
    x, y = _center(state, body, time)
    if body == PUCK:
        return x, y, ONE, ZERO
    sine, cosine = sincos((ONE - time) * start_angle + time * end_angle)
    x -= cosine * s.CENTER_X[body] - sine * s.CENTER_Y[body]
    y -= sine * s.CENTER_X[body] + cosine * s.CENTER_Y[body]
    return x, y, cosine, sine


def _find_axis(state: Any, a: int, a_x: np.float32, a_y: np.float32, b: int, pose: Pose) -> Axis:
    """Return the axis between the closest features: its kind, direction, and a point on the face that it belongs to."""
    one, two = state.simplex_a[0], state.simplex_b[0]
    a_point_x, a_point_y = s.VERTEX_X[a, one] + a_x, s.VERTEX_Y[a, one] + a_y
    b_point_x, b_point_y = moved(pose, s.VERTEX_X[b, two], s.VERTEX_Y[b, two])
    if state.simplex_size == 1:
        x, y = _normalized(b_point_x - a_point_x, b_point_y - a_point_y)
        return _CORNERS, x, y, ZERO, ZERO
    if one == state.simplex_a[1]:
        return _face_axis(_FACE_OF_B, b, two, state.simplex_b[1], pose, a_point_x, a_point_y)
    return _face_axis(_FACE_OF_A, a, one, state.simplex_a[1], (a_x, a_y, ONE, ZERO), b_point_x, b_point_y)


def _face_axis(kind: int, shape: int, one: int, two: int, pose: Pose, x: np.float32, y: np.float32) -> Axis:
    """Return the axis of the face between two vertices of a shape that looks to a point of the other shape."""
    _, _, cosine, sine = pose
    from_x, from_y = s.VERTEX_X[shape, one], s.VERTEX_Y[shape, one]
    to_x, to_y = s.VERTEX_X[shape, two], s.VERTEX_Y[shape, two]
    normal_x, normal_y = _normalized(to_y - from_y, -(to_x - from_x))
    middle_x, middle_y = HALF * (from_x + to_x), HALF * (from_y + to_y)
    face_x, face_y = moved(pose, middle_x, middle_y)
    separation = (x - face_x) * (cosine * normal_x - sine * normal_y)
    separation += (y - face_y) * (sine * normal_x + cosine * normal_y)
    if separation < ZERO:
        normal_x, normal_y = -normal_x, -normal_y
    return kind, normal_x, normal_y, middle_x, middle_y


def _normalized(x: np.float32, y: np.float32) -> tuple[np.float32, np.float32]:
    length = F(math.sqrt(x * x + y * y))
    if length < EPSILON:
        return x, y
    inverse = ONE / length
    return x * inverse, y * inverse


@outlined
def _deepest(state: Any, a: int, b: int, motion: Motion, axis: Axis, time: np.float32) -> tuple[np.float32, int, int]:
    """Return the least separation along an axis at a time, and the vertices it is taken at."""
    kind, x, y, _, _ = axis
    _, _, cosine, sine = _pose(state, motion, time)
    on_a, on_b = 0, 0
    if kind == _FACE_OF_B:
        on_a = support(a, -(cosine * x - sine * y), -(sine * x + cosine * y))
    else:
        if kind == _CORNERS:
            on_a = support(a, x, y)
        on_b = support(b, cosine * -x + sine * -y, -sine * -x + cosine * -y)
    return _separation(state, a, b, motion, axis, on_a, on_b, time), on_a, on_b


@outlined
def _separation(
    state: Any, a: int, b: int, motion: Motion, axis: Axis, on_a: int, on_b: int, time: np.float32
) -> np.float32:
    """Return how far two vertices, or a vertex and a face, are apart along an axis at a time."""
    kind, x, y, middle_x, middle_y = axis
    a_x, a_y = _center(state, s.BODY_OF[a], time)
    pose = _pose(state, motion, time)
    if kind == _FACE_OF_B:
        _, _, cosine, sine = pose
        face_x, face_y = moved(pose, middle_x, middle_y)
        normal_x, normal_y = cosine * x - sine * y, sine * x + cosine * y
        away_x, away_y = (s.VERTEX_X[a, on_a] + a_x) - face_x, (s.VERTEX_Y[a, on_a] + a_y) - face_y
        return F(away_x * normal_x + away_y * normal_y)
    point_x, point_y = moved(pose, s.VERTEX_X[b, on_b], s.VERTEX_Y[b, on_b])
    if kind == _FACE_OF_A:
        return F((point_x - (middle_x + a_x)) * x + (point_y - (middle_y + a_y)) * y)
    return F((point_x - (s.VERTEX_X[a, on_a] + a_x)) * x + (point_y - (s.VERTEX_Y[a, on_a] + a_y)) * y)
