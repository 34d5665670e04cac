"""Shapes, masses and pairs of the compiled game as tables of float32, made once from the numbers of the game.

Fixtures are numbered barriers (top, bottom, posts upper left, lower left, upper right, lower right), left goal (sensor,
solid), right goal (sensor, solid), racket one, racket two, puck. Bodies are racket one, racket two, puck, then what
stands around: eight of them, as a goal is one body with two fixtures.

The outlines are stored as Box2D stores them (E. Catto, zlib licence; see NOTICE): counter-clockwise from the
right-most vertex, the lowest of several; masses and centres of mass are what it makes of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.hockey import constants as c

F = np.float32
Table = NDArray[np.float32]

ZERO, HALF, ONE, TWO = F(0), F(0.5), F(1), F(2)
STEP_S = F(c.TIME_STEP_S)
EPSILON = F(np.finfo(np.float32).eps)
HUGE = F(np.finfo(np.float32).max)
SLOP = F(0.005)  # m, overlap that is left alone

RACKET_ONE, RACKET_TWO, PUCK = 0, 1, 2
NUM_MOVING, NUM_BODIES = 3, 11
LEFT_SENSOR, RIGHT_SENSOR = 6, 8
NUM_FIXTURES, PUCK_FIXTURE = 13, 12

BODY_OF = np.array([3, 4, 5, 6, 7, 8, 9, 9, 10, 10, RACKET_ONE, RACKET_TWO, PUCK])
FIXTURE_OF = np.array([10, 11, 12, 0, 1, 2, 3, 4, 5, 6, 8])  # of each body, the first


def _hull(outline: c.Outline) -> Table:
    """Vertices `(n, 2)` of a convex outline in storage order."""
    points = np.array(outline, np.float32)
    x, y = points.T
    area = np.sum(x * np.roll(y, -1) - y * np.roll(x, -1))
    points = points if area > 0 else points[::-1]
    first = max(range(len(points)), key=lambda k: (points[k, 0], -points[k, 1]))
    return np.roll(points, -first, axis=0)


def _normals(hull: Table) -> Table:
    """Outward unit normal of the edge that begins at each vertex, `(n, 2)`."""
    edges = np.roll(hull, -1, axis=0) - hull
    inverse = F(1) / np.sqrt(edges[:, 1] * edges[:, 1] + edges[:, 0] * edges[:, 0])
    return np.stack([edges[:, 1] * inverse, -edges[:, 0] * inverse], axis=1)


def _centroid(hull: Table) -> Table:
    """Centroid `(2,)`, summed over triangles from the origin, in storage order."""
    total, area, third = np.zeros(2, np.float32), F(0), F(1) / F(3)
    for one, two in zip(hull, np.roll(hull, -1, axis=0), strict=True):
        triangle = F(0.5) * (one[0] * two[1] - one[1] * two[0])
        area += triangle
        total += triangle * third * (one + two)
    return total * (F(1) / area)


_GOALS = [goal for goal in c.GOALS for _ in range(2)]
_HULLS = [_hull(outline) for _, outline in (*c.BARRIERS, *_GOALS)] + [_hull(outline) for outline in c.RACKET_OUTLINES]


def _rows(parts: list[Table], column: int) -> Table:
    table = np.zeros((NUM_FIXTURES, 8), np.float32)
    for row, part in zip(table, parts, strict=False):
        row[: len(part)] = part[:, column]
    return table


VERTEX_COUNT = np.array([len(hull) for hull in _HULLS] + [1])  # the puck is a point with a radius
VERTEX_X, VERTEX_Y = _rows(_HULLS, 0), _rows(_HULLS, 1)
NORMAL_X, NORMAL_Y = _rows([_normals(hull) for hull in _HULLS], 0), _rows([_normals(hull) for hull in _HULLS], 1)
CENTROID_X, CENTROID_Y = np.array([_centroid(hull) for hull in _HULLS] + [np.zeros(2, np.float32)], np.float32).T.copy()
RADIUS = np.array([0.01] * 12 + [c.PUCK_RADIUS], np.float32)
REACH = np.array([RADIUS[PUCK_FIXTURE] if body == PUCK else RADIUS[0] for body in range(NUM_BODIES)])  # of bodies

_PLACES = np.array([position for position, _ in (*c.BARRIERS, *c.GOALS)], np.float32)
STATIC_X, STATIC_Y = (np.concatenate([np.zeros(NUM_MOVING, np.float32), _PLACES[:, axis]]) for axis in (0, 1))

# Of the rackets and the puck; zero for everything that stands.
_STANDING = [0.0] * (NUM_BODIES - NUM_MOVING)
INVERSE_MASS = np.array([0.017241377383470535, 0.017241379246115685, 0.9686521291732788, *_STANDING], np.float32)
INVERSE_INERTIA = np.array([0.2695784270763397, 0.2695784568786621, 41.26801681518555, *_STANDING], np.float32)
CENTER_X = np.array([-0.1223754808306694, 0.1223754808306694, 0.0, *_STANDING], np.float32)
CENTER_Y = np.array([-1.094953461233672e-09, 4.804951991843609e-09, 0.0, *_STANDING], np.float32)


def _pairs() -> list[tuple[int, int]]:
    """Return all pairs of fixtures that can meet, in the order in which simultaneous contacts are created."""
    barriers = range(6)
    with_rackets = [(fixture, racket) for fixture in (*barriers, 7, 9) for racket in (10, 11)]
    with_puck = [(fixture, PUCK_FIXTURE) for fixture in (*barriers, LEFT_SENSOR, RIGHT_SENSOR)]
    return sorted([*with_rackets, *with_puck, (10, 11), (10, PUCK_FIXTURE), (11, PUCK_FIXTURE)])


def _reversed_order() -> NDArray[np.int64]:
    """Return the order of pairs in a game that created its fixtures in reverse order."""
    rank = {fixture: k for k, fixture in enumerate((5, 4, 3, 2, 1, 0, 8, 9, 6, 7, 12, 11, 10))}
    keys = [tuple(sorted((rank[a], rank[b]))) for a, b in _PAIRS]
    return np.array(sorted(range(len(_PAIRS)), key=lambda k: keys[k]))


_PAIRS = _pairs()
NUM_PAIRS = len(_PAIRS)
PAIR_A, PAIR_B = (np.array(column) for column in zip(*_PAIRS, strict=True))
PAIR_ORDER = np.stack([np.arange(NUM_PAIRS), _reversed_order()])
CLASH = _PAIRS.index((10, 11))  # the only pair whose sides swap with the order
IS_SENSOR = (PAIR_A == LEFT_SENSOR) | (PAIR_A == RIGHT_SENSOR)
_FRICTION = np.array([c.WALL_FRICTION] * 10 + [c.RACKET_FRICTION] * 2 + [c.PUCK_FRICTION], np.float32)
FRICTION = np.sqrt(_FRICTION[PAIR_A] * _FRICTION[PAIR_B])
RESTITUTION = np.where(PAIR_B == PUCK_FIXTURE, F(c.PUCK_RESTITUTION), F(0))
