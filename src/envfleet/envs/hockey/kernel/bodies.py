"""Where bodies are, how they move through one step, and the boxes around them.

A body has an origin (what players see), a centre of mass (what moves), and for the time of a step a sweep: the centre
and the angle at its beginning and at its end. Boxes are what pairs are found by: a stored box has a margin and stays
until the body leaves it. The method, and with it the order of the roundings, is that of Box2D (E. Catto, zlib licence;
see NOTICE).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from envfleet.envs.hockey.kernel.shapes import (
    BODY_OF,
    CENTRE_X,
    CENTRE_Y,
    FIXTURE_OF,
    HUGE,
    NUM_BODIES,
    NUM_FIXTURES,
    NUM_MOVING,
    NUM_PAIRS,
    ONE,
    PUCK,
    PUCK_FIXTURE,
    RADIUS,
    STATIC_X,
    STATIC_Y,
    TWO,
    VERTEX_COUNT,
    VERTEX_X,
    VERTEX_Y,
    ZERO,
    F,
)
from envfleet.envs.hockey.kernel.sines import sincos

_MARGIN = F(0.1)


def build(state: Any) -> None:
    """Begin with nothing but what stands around: no pairs, nothing queued, everything awake."""
    for body in range(NUM_BODIES):
        state.x[body] = STATIC_X[body]
        state.y[body] = STATIC_Y[body]
        state.centre_x[body] = STATIC_X[body]
        state.centre_y[body] = STATIC_Y[body]
        state.cosine[body] = ONE
        state.sine[body] = ZERO
        state.angle[body] = ZERO
        state.velocity_x[body] = ZERO
        state.velocity_y[body] = ZERO
        state.spin[body] = ZERO
        state.progress[body] = ZERO
        begin_sweep(state, body)
    for body in range(NUM_MOVING):
        state.force_x[body] = ZERO
        state.force_y[body] = ZERO
        state.torque[body] = ZERO
        state.still_s[body] = ZERO
        state.is_awake[body] = True
        state.angular_damping[body] = ZERO
        state.linear_damping[body] = ZERO
    for fixture in range(NUM_FIXTURES - NUM_MOVING):
        body = BODY_OF[fixture]
        low_x, low_y, high_x, high_y = _box(fixture, STATIC_X[body], STATIC_Y[body], ONE, ZERO)
        _store_near(state, body, low_x, low_y, high_x, high_y)
        _store_box(state, body, low_x, low_y, high_x, high_y)
    for pair in range(NUM_PAIRS):
        state.is_paired[pair] = False
    state.num_pairs = 0


def add_body(state: Any, body: int, x: np.float32, y: np.float32) -> None:
    """Put a racket or the puck into the game, upright and at rest."""
    state.x[body] = x
    state.y[body] = y
    _place_centre(state, body)
    low_x, low_y, high_x, high_y = _box(FIXTURE_OF[body], x, y, ONE, ZERO)
    _store_box(state, body, low_x, low_y, high_x, high_y)
    _store_near(state, body, low_x, low_y, high_x, high_y)
    state.is_new[body] = True


def wake(state: Any, body: int) -> None:
    """Wake a body that sleeps."""
    if body < NUM_MOVING and not state.is_awake[body]:
        state.is_awake[body] = True
        state.still_s[body] = ZERO


def teleport(state: Any, body: int, x: np.float32, y: np.float32, angle: np.float32) -> None:
    """Put a body somewhere else."""
    state.x[body] = x
    state.y[body] = y
    state.angle[body] = angle
    turn(state, body)
    _place_centre(state, body)
    state.start_x[body] = state.centre_x[body]
    state.start_y[body] = state.centre_y[body]
    state.start_angle[body] = angle
    update_box(state, body)


def _place_centre(state: Any, body: int) -> None:
    cosine, sine = state.cosine[body], state.sine[body]
    state.centre_x[body] = (cosine * CENTRE_X[body] - sine * CENTRE_Y[body]) + state.x[body]
    state.centre_y[body] = (sine * CENTRE_X[body] + cosine * CENTRE_Y[body]) + state.y[body]


def turn(state: Any, body: int) -> None:
    """Compute cosine and sine of a racket anew; nothing else has any that are needed."""
    if body < PUCK:
        state.sine[body], state.cosine[body] = sincos(state.angle[body])


def origin(state: Any, body: int) -> tuple[np.float32, np.float32]:
    """Return where the origin is, from the centre of mass."""
    cosine, sine = state.cosine[body], state.sine[body]
    x = state.centre_x[body] - (cosine * CENTRE_X[body] - sine * CENTRE_Y[body])
    y = state.centre_y[body] - (sine * CENTRE_X[body] + cosine * CENTRE_Y[body])
    return x, y


def follow(state: Any, body: int) -> None:
    """Bring the origin to where the centre of mass and the angle are."""
    turn(state, body)
    x, y = origin(state, body)
    state.x[body] = x
    state.y[body] = y


def begin_sweep(state: Any, body: int) -> None:
    """Let the sweep of a new step begin where the body is."""
    state.start_x[body] = state.centre_x[body]
    state.start_y[body] = state.centre_y[body]
    state.start_angle[body] = state.angle[body]


def advance_start(state: Any, body: int, progress: np.float32) -> None:
    """Let the sweep begin later: at `progress`, from 0 to 1, of the step.

    What stands is rounded like what moves, so that it drifts by last bits over a game, as in Box2D.
    """
    share = (progress - state.progress[body]) / (ONE - state.progress[body])
    left = ONE - share
    state.start_x[body] = left * state.start_x[body] + share * state.centre_x[body]
    state.start_y[body] = left * state.start_y[body] + share * state.centre_y[body]
    state.start_angle[body] = left * state.start_angle[body] + share * state.angle[body]
    state.progress[body] = progress


def advance(state: Any, body: int, progress: np.float32) -> None:
    """Put the body where it is at `progress` of the step, where its sweep now begins and ends."""
    advance_start(state, body, progress)
    state.centre_x[body] = state.start_x[body]
    state.centre_y[body] = state.start_y[body]
    state.angle[body] = state.start_angle[body]
    follow(state, body)


def update_box(state: Any, body: int) -> None:
    """Look where the body's sweep goes, and let its stored box grow if it goes out of it."""
    fixture = FIXTURE_OF[body]
    x, y = state.x[body], state.y[body]
    if body == PUCK:
        begin_x, begin_y, cosine, sine = state.start_x[body], state.start_y[body], ONE, ZERO
    else:
        sine, cosine = sincos(state.start_angle[body])
        begin_x = state.start_x[body] - (cosine * CENTRE_X[body] - sine * CENTRE_Y[body])
        begin_y = state.start_y[body] - (sine * CENTRE_X[body] + cosine * CENTRE_Y[body])
    low_x, low_y, high_x, high_y = _box(fixture, begin_x, begin_y, cosine, sine)
    end_low_x, end_low_y, end_high_x, end_high_y = _box(fixture, x, y, state.cosine[body], state.sine[body])
    low_x, low_y = min(low_x, end_low_x), min(low_y, end_low_y)
    high_x, high_y = max(high_x, end_high_x), max(high_y, end_high_y)
    _store_near(state, body, low_x, low_y, high_x, high_y)
    is_inside = state.box_low_x[body] <= low_x and state.box_low_y[body] <= low_y
    if is_inside and high_x <= state.box_high_x[body] and high_y <= state.box_high_y[body]:
        return
    _store_box(state, body, low_x, low_y, high_x, high_y)
    ahead_x, ahead_y = TWO * (x - begin_x), TWO * (y - begin_y)
    if ahead_x < ZERO:
        state.box_low_x[body] += ahead_x
    else:
        state.box_high_x[body] += ahead_x
    if ahead_y < ZERO:
        state.box_low_y[body] += ahead_y
    else:
        state.box_high_y[body] += ahead_y
    state.is_new[body] = True


def _store_near(
    state: Any, body: int, low_x: np.float32, low_y: np.float32, high_x: np.float32, high_y: np.float32
) -> None:
    state.near_low_x[body] = low_x
    state.near_low_y[body] = low_y
    state.near_high_x[body] = high_x
    state.near_high_y[body] = high_y


def _store_box(
    state: Any, body: int, low_x: np.float32, low_y: np.float32, high_x: np.float32, high_y: np.float32
) -> None:
    state.box_low_x[body] = low_x - _MARGIN
    state.box_low_y[body] = low_y - _MARGIN
    state.box_high_x[body] = high_x + _MARGIN
    state.box_high_y[body] = high_y + _MARGIN


def _box(
    fixture: int, x: np.float32, y: np.float32, cosine: np.float32, sine: np.float32
) -> tuple[np.float32, np.float32, np.float32, np.float32]:
    """Return the tight box around a fixture, skin included."""
    radius = RADIUS[fixture]
    if fixture == PUCK_FIXTURE:
        return x - radius, y - radius, x + radius, y + radius
    low_x, low_y, high_x, high_y = HUGE, HUGE, -HUGE, -HUGE
    for k in range(VERTEX_COUNT[fixture]):
        vertex_x = (cosine * VERTEX_X[fixture, k] - sine * VERTEX_Y[fixture, k]) + x
        vertex_y = (sine * VERTEX_X[fixture, k] + cosine * VERTEX_Y[fixture, k]) + y
        low_x, low_y = min(low_x, vertex_x), min(low_y, vertex_y)
        high_x, high_y = max(high_x, vertex_x), max(high_y, vertex_y)
    return low_x - radius, low_y - radius, high_x + radius, high_y + radius
