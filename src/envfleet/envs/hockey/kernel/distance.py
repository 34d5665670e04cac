"""The distance of two convex shapes, by the algorithm of Gilbert, Johnson and Keerthi.

The first shape is upright, as everything around the field; the second has any pose. The simplex, up to three pairs of
vertices, stays in the state, and the next call starts from it. After Box2D's version of the algorithm
(E. Catto, zlib licence; see NOTICE), which solves for barycentric coordinates.

Source: E. Gilbert, D. Johnson, S. Keerthi, "A Fast Procedure for Computing the Distance between Complex Objects in
Three-Dimensional Space" (1988).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from envfleet.envs.hockey.kernel.shapes import EPSILON, HALF, ONE, TWO, VERTEX_COUNT, VERTEX_X, VERTEX_Y, ZERO, F
from envfleet.kernels import outlined

Pose = tuple[np.float32, np.float32, np.float32, np.float32]
"""Origin, cosine and sine."""

_MAX_ROUNDS = 20
_EPSILON_SQUARED = EPSILON * EPSILON


def moved(pose: Pose, x: np.float32, y: np.float32) -> tuple[np.float32, np.float32]:
    """Return where a point of a shape that has this pose is."""
    origin_x, origin_y, cosine, sine = pose
    return (cosine * x - sine * y) + origin_x, (sine * x + cosine * y) + origin_y


def support(fixture: int, x: np.float32, y: np.float32) -> int:
    """Return the vertex that is farthest in a direction, in the frame of the fixture."""
    most, vertex = VERTEX_X[fixture, 0] * x + VERTEX_Y[fixture, 0] * y, 0
    for k in range(1, VERTEX_COUNT[fixture]):
        reach = VERTEX_X[fixture, k] * x + VERTEX_Y[fixture, k] * y
        if reach > most:
            most, vertex = reach, k
    return vertex


@outlined
def distance(state: Any, a: int, a_x: np.float32, a_y: np.float32, b: int, pose: Pose) -> np.float32:
    """Distance (m) of the polygons of two fixtures, skins and radii left aside; the simplex of the state is updated.

    Args:
        state: Its `simplex_size` is 0 for a fresh beginning.
        a: The fixture that stands upright.
        a_x: Coordinate of its origin, as `a_y`.
        a_y: See `a_x`.
        b: The other fixture.
        pose: That of `b`.
    """
    _resume(state, a, a_x, a_y, b, pose)
    _, _, cosine, sine = pose
    for _ in range(_MAX_ROUNDS):
        size = state.simplex_size
        old_a0, old_a1, old_a2 = state.simplex_a[0], state.simplex_a[1], state.simplex_a[2]
        old_b0, old_b1, old_b2 = state.simplex_b[0], state.simplex_b[1], state.simplex_b[2]
        if size == 2:
            _reduce_segment(state)
        elif size == 3:
            _reduce_triangle(state)
        if state.simplex_size == 3:
            break
        x, y = _direction(state)
        if x * x + y * y < _EPSILON_SQUARED:
            break
        new = state.simplex_size
        new_a = support(a, -x, -y)
        new_b = support(b, cosine * x + sine * y, -sine * x + cosine * y)
        state.simplex_a[new], state.simplex_b[new] = new_a, new_b
        _set_vertex(state, new, a, a_x, a_y, b, pose)
        is_known = (new_a == old_a0) & (new_b == old_b0)
        is_known |= (size > 1) & (new_a == old_a1) & (new_b == old_b1)
        is_known |= (size > 2) & (new_a == old_a2) & (new_b == old_b2)
        if is_known:
            break
        state.simplex_size = new + 1
    state.simplex_metric = _metric(state)
    return _witness_distance(state)


def _resume(state: Any, a: int, a_x: np.float32, a_y: np.float32, b: int, pose: Pose) -> None:
    """Update the simplex of the last call to the present poses, or start with a corner of each shape."""
    for k in range(state.simplex_size):
        _set_vertex(state, k, a, a_x, a_y, b, pose)
    if state.simplex_size > 1:
        before, now = state.simplex_metric, _metric(state)
        if now < HALF * before or TWO * before < now or now < EPSILON:
            state.simplex_size = 0
    if state.simplex_size == 0:
        state.simplex_size = 1
        state.simplex_a[0], state.simplex_b[0] = 0, 0
        _set_vertex(state, 0, a, a_x, a_y, b, pose)


def _set_vertex(state: Any, k: int, a: int, a_x: np.float32, a_y: np.float32, b: int, pose: Pose) -> None:
    on_a, on_b = state.simplex_a[k], state.simplex_b[k]
    state.simplex_ax[k] = VERTEX_X[a, on_a] + a_x
    state.simplex_ay[k] = VERTEX_Y[a, on_a] + a_y
    state.simplex_bx[k], state.simplex_by[k] = moved(pose, VERTEX_X[b, on_b], VERTEX_Y[b, on_b])
    state.simplex_x[k] = state.simplex_bx[k] - state.simplex_ax[k]
    state.simplex_y[k] = state.simplex_by[k] - state.simplex_ay[k]
    state.simplex_share[k] = ONE


def _copy_vertex(state: Any, source: int, target: int) -> None:
    state.simplex_a[target], state.simplex_b[target] = state.simplex_a[source], state.simplex_b[source]
    state.simplex_ax[target], state.simplex_ay[target] = state.simplex_ax[source], state.simplex_ay[source]
    state.simplex_bx[target], state.simplex_by[target] = state.simplex_bx[source], state.simplex_by[source]
    state.simplex_x[target], state.simplex_y[target] = state.simplex_x[source], state.simplex_y[source]


def _metric(state: Any) -> np.float32:
    x, y, size = state.simplex_x, state.simplex_y, state.simplex_size
    if size == 1:
        return ZERO
    along_x, along_y = x[1] - x[0], y[1] - y[0]
    if size == 2:
        return F(math.sqrt(along_x * along_x + along_y * along_y))
    return F(along_x * (y[2] - y[0]) - along_y * (x[2] - x[0]))


def _direction(state: Any) -> tuple[np.float32, np.float32]:
    """Return where the origin is, seen from the simplex."""
    x, y = state.simplex_x, state.simplex_y
    if state.simplex_size == 1:
        return -x[0], -y[0]
    along_x, along_y = x[1] - x[0], y[1] - y[0]
    if along_x * -y[0] - along_y * -x[0] > ZERO:
        return -along_y, along_x
    return along_y, -along_x


def _keep_vertex(state: Any) -> None:
    """Reduce the simplex to its first vertex."""
    state.simplex_share[0] = ONE
    state.simplex_size = 1


def _keep_segment(state: Any, first: np.float32, second: np.float32) -> None:
    """Reduce the simplex to its first two vertices, which have these weights."""
    inverse = ONE / (first + second)
    state.simplex_share[0], state.simplex_share[1] = first * inverse, second * inverse
    state.simplex_size = 2


def _reduce_segment(state: Any) -> None:
    x, y = state.simplex_x, state.simplex_y
    along_x, along_y = x[1] - x[0], y[1] - y[0]
    first, second = x[1] * along_x + y[1] * along_y, -(x[0] * along_x + y[0] * along_y)
    if second <= ZERO:
        _keep_vertex(state)
    elif first <= ZERO:
        _copy_vertex(state, 1, 0)
        _keep_vertex(state)
    else:
        _keep_segment(state, first, second)


def _reduce_triangle(state: Any) -> None:
    x, y = state.simplex_x, state.simplex_y
    x0, y0, x1, y1, x2, y2 = x[0], y[0], x[1], y[1], x[2], y[2]
    e01x, e01y, e02x, e02y, e12x, e12y = x1 - x0, y1 - y0, x2 - x0, y2 - y0, x2 - x1, y2 - y1
    d01_0, d01_1 = x1 * e01x + y1 * e01y, -(x0 * e01x + y0 * e01y)
    d02_0, d02_2 = x2 * e02x + y2 * e02y, -(x0 * e02x + y0 * e02y)
    d12_1, d12_2 = x2 * e12x + y2 * e12y, -(x1 * e12x + y1 * e12y)
    turn = e01x * e02y - e01y * e02x
    d0, d1, d2 = turn * (x1 * y2 - y1 * x2), turn * (x2 * y0 - y2 * x0), turn * (x0 * y1 - y0 * x1)
    if d01_1 <= ZERO and d02_2 <= ZERO:
        _keep_vertex(state)
    elif d01_0 > ZERO and d01_1 > ZERO and d2 <= ZERO:
        _keep_segment(state, d01_0, d01_1)
    elif d02_0 > ZERO and d02_2 > ZERO and d1 <= ZERO:
        _copy_vertex(state, 2, 1)
        _keep_segment(state, d02_0, d02_2)
    elif d01_0 <= ZERO and d12_2 <= ZERO:
        _copy_vertex(state, 1, 0)
        _keep_vertex(state)
    elif d02_0 <= ZERO and d12_1 <= ZERO:
        _copy_vertex(state, 2, 0)
        _keep_vertex(state)
    elif d12_1 > ZERO and d12_2 > ZERO and d0 <= ZERO:
        _copy_vertex(state, 2, 0)
        _keep_segment(state, d12_2, d12_1)
    else:
        share, inverse = state.simplex_share, ONE / (d0 + d1 + d2)
        share[0], share[1], share[2] = d0 * inverse, d1 * inverse, d2 * inverse
        state.simplex_size = 3


def _witness_distance(state: Any) -> np.float32:
    size = state.simplex_size
    if size == 3:
        return ZERO
    a_x, a_y, b_x, b_y = state.simplex_ax[0], state.simplex_ay[0], state.simplex_bx[0], state.simplex_by[0]
    if size == 2:
        first, second = state.simplex_share[0], state.simplex_share[1]
        a_x = first * a_x + second * state.simplex_ax[1]
        a_y = first * a_y + second * state.simplex_ay[1]
        b_x = first * b_x + second * state.simplex_bx[1]
        b_y = first * b_y + second * state.simplex_by[1]
    x, y = a_x - b_x, a_y - b_y
    return F(math.sqrt(x * x + y * y))
