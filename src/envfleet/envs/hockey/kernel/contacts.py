"""Contacts, updated once at the beginning of a step, and the referee that they notify.

After Box2D (E. Catto, zlib licence; see NOTICE).
"""

from __future__ import annotations

from typing import Any

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey.kernel import shapes as s
from envfleet.envs.hockey.kernel.bodies import are_apart, wake
from envfleet.envs.hockey.kernel.distance import distance
from envfleet.envs.hockey.kernel.manifolds import touch_polygons, touch_puck
from envfleet.envs.hockey.kernel.pairs import drop_pair, fixtures
from envfleet.envs.hockey.kernel.shapes import EPSILON, NUM_MOVING, ONE, PUCK, RACKET_ONE, RACKET_TWO, ZERO, F
from envfleet.kernels import outlined

_TEN_EPSILON = F(10) * EPSILON
_APART = F(0.2)  # m; at this distance no contact is possible, even if a racket turns in between


def update_contacts(state: Any) -> None:
    """Check all pairs and remove those with bounding boxes that no longer overlap."""
    for place in range(state.num_pairs - 1, -1, -1):
        pair = state.pairs[place]
        a, b = s.BODY_OF[s.PAIR_A[pair]], s.BODY_OF[s.PAIR_B[pair]]
        if state.is_awake[b] or (a < NUM_MOVING and state.is_awake[a]):
            if are_apart(state.stored, a, b, ZERO):
                drop_pair(state, place)
            else:
                update_contact(state, pair)


@outlined
def update_contact(state: Any, pair: int) -> None:
    """Look at one pair: its manifold, with the impulses of points that were there before, and whether it touches."""
    a, b = s.BODY_OF[s.PAIR_A[pair]], s.BODY_OF[s.PAIR_B[pair]]
    state.is_enabled[pair] = True
    was_touching = state.is_touching[pair] != 0
    if s.IS_SENSOR[pair]:
        is_touching = _is_in_goal(state, pair)
    else:
        if are_apart(state.near, a, b, _APART):
            state.num_points[pair] = 0
        else:
            _renew_manifold(state, pair)
        is_touching = state.num_points[pair] > 0
        if is_touching != was_touching:
            wake(state, a)
            wake(state, b)
    state.is_touching[pair] = is_touching
    if is_touching and not was_touching and b == PUCK:
        _referee(state, pair)


def _renew_manifold(state: Any, pair: int) -> None:
    one, two = 2 * pair, 2 * pair + 1
    count, feature_one, feature_two = state.num_points[pair], state.feature[one], state.feature[two]
    normal_one, normal_two = state.normal_impulse[one], state.normal_impulse[two]
    tangent_one, tangent_two = state.tangent_impulse[one], state.tangent_impulse[two]
    if s.PAIR_B[pair] == s.PUCK_FIXTURE:
        touch_puck(state, pair)
    else:
        touch_polygons(state, pair)
    for k in range(state.num_points[pair]):
        point = 2 * pair + k
        state.normal_impulse[point] = ZERO
        state.tangent_impulse[point] = ZERO
        if count > 0 and state.feature[point] == feature_one:
            state.normal_impulse[point] = normal_one
            state.tangent_impulse[point] = tangent_one
        elif count > 1 and state.feature[point] == feature_two:
            state.normal_impulse[point] = normal_two
            state.tangent_impulse[point] = tangent_two


def _is_in_goal(state: Any, pair: int) -> bool:
    fixture = fixtures(state, pair)[0]
    body = s.BODY_OF[fixture]
    if are_apart(state.near, body, PUCK, _APART):
        return False
    state.simplex_size = 0
    pose = (state.x[PUCK], state.y[PUCK], ONE, ZERO)
    apart = distance(state, fixture, state.x[body], state.y[body], s.PUCK_FIXTURE, pose)
    radii = s.RADIUS[fixture] + s.RADIUS[s.PUCK_FIXTURE]
    return bool(not (apart > radii and apart > EPSILON) or apart - radii < _TEN_EPSILON)


def _referee(state: Any, pair: int) -> None:
    """Judge what the puck begins to touch: goals and catches."""
    if s.IS_SENSOR[pair]:
        state.winner = -1 if s.PAIR_A[pair] == s.LEFT_SENSOR else 1
        return
    racket = s.BODY_OF[s.PAIR_A[pair]]
    if racket >= NUM_MOVING or not state.can_hold or state.holds[racket] != 0:
        return
    speed = float(state.velocity_x[PUCK])
    if (racket == RACKET_ONE and speed < c.CATCH_SPEED) or (racket == RACKET_TWO and speed > -c.CATCH_SPEED):
        state.holds[racket] = c.HOLD_STEPS
