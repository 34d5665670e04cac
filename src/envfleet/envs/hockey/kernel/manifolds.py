"""Contact manifold of two shapes: one or two points, a normal, and features that identify points between steps.

A manifold is kept in the frames of its two bodies, so that it moves with them while they are solved: a plane, its
normal and a point on it, on one body, and points on the other. The method is that of Box2D (E. Catto, zlib licence;
see NOTICE): separating axes, a hill climb from the direction of the centroids, and clipping.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from envfleet.envs.hockey.kernel import shapes as s
from envfleet.envs.hockey.kernel.bodies import placed, rotated
from envfleet.envs.hockey.kernel.distance import support
from envfleet.envs.hockey.kernel.pairs import fixtures
from envfleet.envs.hockey.kernel.shapes import EPSILON, HALF, HUGE, ONE, PUCK, ZERO, F
from envfleet.kernels import outlined

_TWO_SKINS = s.RADIUS[0] + s.RADIUS[0]
_FAR = F(0.98)  # the other polygon's face is taken if it is clearly better, so that the choice does not flicker
_NEAR = F(0.001)

# A feature is the index on polygon A, 8 times that on polygon B, and which of the two is the face; while polygons are
# cut, A is the polygon with the face.
_VERTEX_ON_FACE, _FACE_ON_VERTEX = 64, 0

Corner = tuple[np.float32, np.float32, int]
"""A point in the world, and its feature."""


@outlined
def touch_puck(state: Any, pair: int) -> None:
    """Find where the puck touches a polygon."""
    shape = fixtures(state, pair)[0]
    a = s.BODY_OF[shape]
    state.num_points[pair] = 0
    away_x, away_y = state.x[PUCK] - state.x[a], state.y[PUCK] - state.y[a]
    x = state.cosine[a] * away_x + state.sine[a] * away_y
    y = -state.sine[a] * away_x + state.cosine[a] * away_y
    radius = s.RADIUS[shape] + s.RADIUS[s.PUCK_FIXTURE]
    best, edge = -HUGE, 0
    for k in range(s.VERTEX_COUNT[shape]):
        from_x, from_y = x - s.VERTEX_X[shape, k], y - s.VERTEX_Y[shape, k]
        separation = s.NORMAL_X[shape, k] * from_x + s.NORMAL_Y[shape, k] * from_y
        if separation > radius:
            return
        if separation > best:
            best, edge = separation, k
    after = edge + 1 if edge + 1 < s.VERTEX_COUNT[shape] else 0
    first_x, first_y = s.VERTEX_X[shape, edge], s.VERTEX_Y[shape, edge]
    second_x, second_y = s.VERTEX_X[shape, after], s.VERTEX_Y[shape, after]
    normal_x, normal_y = s.NORMAL_X[shape, edge], s.NORMAL_Y[shape, edge]
    plane_x, plane_y = HALF * (first_x + second_x), HALF * (first_y + second_y)
    if best >= EPSILON:
        along_x, along_y = second_x - first_x, second_y - first_y
        before = (x - first_x) * along_x + (y - first_y) * along_y
        behind = (x - second_x) * (first_x - second_x) + (y - second_y) * (first_y - second_y)
        if before <= ZERO or behind <= ZERO:
            plane_x, plane_y = (first_x, first_y) if before <= ZERO else (second_x, second_y)
            normal_x, normal_y = x - plane_x, y - plane_y
            squared = normal_x * normal_x + normal_y * normal_y
            if squared > radius * radius:
                return
            length = F(math.sqrt(squared))
            if length >= EPSILON:
                inverse = ONE / length
                normal_x, normal_y = normal_x * inverse, normal_y * inverse
        elif (x - plane_x) * normal_x + (y - plane_y) * normal_y > radius:
            return
    state.num_points[pair] = 1
    state.is_face_b[pair] = False
    state.normal_x[pair], state.normal_y[pair] = normal_x, normal_y
    state.plane_x[pair], state.plane_y[pair] = plane_x, plane_y
    state.point_x[2 * pair], state.point_y[2 * pair] = ZERO, ZERO
    state.feature[2 * pair] = 0


@outlined
def touch_polygons(state: Any, pair: int) -> None:
    """Find where two polygons touch."""
    shape_a, shape_b = fixtures(state, pair)
    state.num_points[pair] = 0
    separation_a, edge_a = _largest_separation(state, shape_a, shape_b)
    if separation_a > _TWO_SKINS:
        return
    separation_b, edge_b = _largest_separation(state, shape_b, shape_a)
    if separation_b > _TWO_SKINS:
        return
    is_face_b = separation_b > _FAR * separation_a + _NEAR
    if is_face_b:
        _clip(state, pair, shape_b, shape_a, edge_b, True)
    else:
        _clip(state, pair, shape_a, shape_b, edge_a, False)


def _rotated_back(state: Any, body: int, x: np.float32, y: np.float32) -> tuple[np.float32, np.float32]:
    cosine, sine = state.cosine[body], state.sine[body]
    return cosine * x + sine * y, -sine * x + cosine * y


def _facing(fixture: int, x: np.float32, y: np.float32) -> int:
    """Return the edge that looks farthest in a direction, in the frame of the fixture."""
    most, edge = -HUGE, 0
    for k in range(s.VERTEX_COUNT[fixture]):
        reach = s.NORMAL_X[fixture, k] * x + s.NORMAL_Y[fixture, k] * y
        if reach > most:
            most, edge = reach, k
    return edge


@outlined
def _edge_separation(state: Any, one: int, edge: int, two: int) -> np.float32:
    """Return how far the second polygon is in front of an edge of the first."""
    a, b = s.BODY_OF[one], s.BODY_OF[two]
    world_x, world_y = rotated(state, a, s.NORMAL_X[one, edge], s.NORMAL_Y[one, edge])
    x, y = _rotated_back(state, b, world_x, world_y)
    nearest = support(two, -x, -y)
    from_x, from_y = placed(state, a, s.VERTEX_X[one, edge], s.VERTEX_Y[one, edge])
    to_x, to_y = placed(state, b, s.VERTEX_X[two, nearest], s.VERTEX_Y[two, nearest])
    return F((to_x - from_x) * world_x + (to_y - from_y) * world_y)


@outlined
def _largest_separation(state: Any, one: int, two: int) -> tuple[np.float32, int]:
    """Return the largest separation over the edges of the first polygon, and its edge."""
    a, b = s.BODY_OF[one], s.BODY_OF[two]
    count = s.VERTEX_COUNT[one]
    from_x, from_y = placed(state, a, s.CENTROID_X[one], s.CENTROID_Y[one])
    to_x, to_y = placed(state, b, s.CENTROID_X[two], s.CENTROID_Y[two])
    x, y = _rotated_back(state, a, to_x - from_x, to_y - from_y)
    edge = _facing(one, x, y)
    best = _edge_separation(state, one, edge, two)
    before = edge - 1 if edge > 0 else count - 1
    after = edge + 1 if edge + 1 < count else 0
    best_before = _edge_separation(state, one, before, two)
    best_after = _edge_separation(state, one, after, two)
    if best_before > best and best_before > best_after:
        way, best, edge = count - 1, best_before, before
    elif best_after > best:
        way, best, edge = 1, best_after, after
    else:
        return best, edge
    for _ in range(count):
        following = edge + way
        following = following - count if following >= count else following
        separation = _edge_separation(state, one, following, two)
        if separation <= best:
            break
        best, edge = separation, following
    return best, edge


@outlined
def _clip(state: Any, pair: int, one: int, two: int, edge: int, is_face_b: bool) -> None:
    """Cut the edge of the second polygon that faces an edge of the first, and keep what is near enough."""
    a, b = s.BODY_OF[one], s.BODY_OF[two]
    world_x, world_y = rotated(state, a, s.NORMAL_X[one, edge], s.NORMAL_Y[one, edge])
    x, y = _rotated_back(state, b, world_x, world_y)
    facing = _facing(two, -x, -y)
    after = facing + 1 if facing + 1 < s.VERTEX_COUNT[two] else 0
    one_x, one_y = placed(state, b, s.VERTEX_X[two, facing], s.VERTEX_Y[two, facing])
    two_x, two_y = placed(state, b, s.VERTEX_X[two, after], s.VERTEX_Y[two, after])
    corner_one = (one_x, one_y, _VERTEX_ON_FACE + 8 * facing + edge)
    corner_two = (two_x, two_y, _VERTEX_ON_FACE + 8 * after + edge)

    following = edge + 1 if edge + 1 < s.VERTEX_COUNT[one] else 0
    tangent_x, tangent_y = rotated(state, a, -s.NORMAL_Y[one, edge], s.NORMAL_X[one, edge])
    normal_x, normal_y = tangent_y, -tangent_x
    first_x, first_y = placed(state, a, s.VERTEX_X[one, edge], s.VERTEX_Y[one, edge])
    second_x, second_y = placed(state, a, s.VERTEX_X[one, following], s.VERTEX_Y[one, following])
    front = normal_x * first_x + normal_y * first_y
    side = -(tangent_x * first_x + tangent_y * first_y) + _TWO_SKINS
    far_side = (tangent_x * second_x + tangent_y * second_y) + _TWO_SKINS

    is_left, corner_one, corner_two = _cut(corner_one, corner_two, -tangent_x, -tangent_y, side, edge)
    if not is_left:
        return
    is_left, corner_one, corner_two = _cut(corner_one, corner_two, tangent_x, tangent_y, far_side, following)
    if not is_left:
        return
    state.is_face_b[pair] = is_face_b
    state.normal_x[pair], state.normal_y[pair] = s.NORMAL_X[one, edge], s.NORMAL_Y[one, edge]
    state.plane_x[pair] = HALF * (s.VERTEX_X[one, edge] + s.VERTEX_X[one, following])
    state.plane_y[pair] = HALF * (s.VERTEX_Y[one, edge] + s.VERTEX_Y[one, following])
    if (normal_x * corner_one[0] + normal_y * corner_one[1]) - front <= _TWO_SKINS:
        _keep(state, pair, b, corner_one)
    if (normal_x * corner_two[0] + normal_y * corner_two[1]) - front <= _TWO_SKINS:
        _keep(state, pair, b, corner_two)


def _cut(
    one: Corner, two: Corner, normal_x: np.float32, normal_y: np.float32, offset: np.float32, corner: int
) -> tuple[bool, Corner, Corner]:
    """Cut a segment off behind a line; returns whether anything is left, and what."""
    beyond_one = (normal_x * one[0] + normal_y * one[1]) - offset
    beyond_two = (normal_x * two[0] + normal_y * two[1]) - offset
    if beyond_one <= ZERO and beyond_two <= ZERO:
        return True, one, two
    if not beyond_one * beyond_two < ZERO:
        return False, one, two
    share = beyond_one / (beyond_one - beyond_two)
    feature = _FACE_ON_VERTEX + (one[2] & 56) + corner
    cut = (one[0] + share * (two[0] - one[0]), one[1] + share * (two[1] - one[1]), feature)
    return True, one if beyond_one <= ZERO else two, cut


def _keep(state: Any, pair: int, body: int, corner: Corner) -> None:
    """Add a point, given in the world, to the manifold; it moves with a body."""
    x, y, feature = corner
    away_x, away_y = x - state.x[body], y - state.y[body]
    point = 2 * pair + state.num_points[pair]
    state.point_x[point], state.point_y[point] = _rotated_back(state, body, away_x, away_y)
    if state.is_face_b[pair]:
        feature = (feature >> 3 & 7) + 8 * (feature & 7) + (_VERTEX_ON_FACE - (feature & _VERTEX_ON_FACE))
    state.feature[point] = feature
    state.num_points[pair] += 1
