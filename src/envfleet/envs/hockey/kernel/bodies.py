"""Positions of bodies, their motion in one step, and their bounding boxes.

A body has an origin (what players see), a centre of mass (what moves), and for the time of a step a sweep: the centre
and the angle at its beginning and at its end. Boxes are what pairs are found by: a stored box has a margin and stays
until the body leaves it. The method, and with it the order of the roundings, is that of Box2D (E. Catto, zlib licence;
see NOTICE).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from envfleet.envs.hockey.kernel import shapes as s
from envfleet.envs.hockey.kernel.shapes import HUGE, NUM_MOVING, ONE, PUCK, TWO, ZERO, F
from envfleet.envs.hockey.kernel.sines import sincos

_MARGIN = F(0.1)
_MAX_ROTATION, _MAX_TRANSLATION = F(math.pi / 2), F(2)  # of one step

Box = tuple[np.float32, np.float32, np.float32, np.float32]
"""Low x, low y, high x, high y."""


def add_body(state: Any, body: int, x: np.float32, y: np.float32) -> None:
    """Put a body into the game, upright, at rest and awake."""
    state.x[body] = x
    state.y[body] = y
    state.cosine[body] = ONE
    state.center_x[body], state.center_y[body] = placed(state, body, s.CENTER_X[body], s.CENTER_Y[body])
    begin_sweep(state, body)
    box = _box(s.FIXTURE_OF[body], x, y, ONE, ZERO)
    _store(state.near, body, box, ZERO)
    _store(state.stored, body, box, _MARGIN)
    if body < NUM_MOVING:
        state.is_awake[body] = True
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
    state.center_x[body], state.center_y[body] = placed(state, body, s.CENTER_X[body], s.CENTER_Y[body])
    begin_sweep(state, body)
    update_box(state, body)


def rotated(state: Any, body: int, x: np.float32, y: np.float32) -> tuple[np.float32, np.float32]:
    """Turn a vector of the body's frame to the world's."""
    cosine, sine = state.cosine[body], state.sine[body]
    return cosine * x - sine * y, sine * x + cosine * y


def placed(state: Any, body: int, x: np.float32, y: np.float32) -> tuple[np.float32, np.float32]:
    """Turn a point of the body's frame to the world's."""
    x, y = rotated(state, body, x, y)
    return x + state.x[body], y + state.y[body]


def turn(state: Any, body: int) -> None:
    """Update cosine and sine of a racket; no other body needs them."""
    if body < PUCK:
        state.sine[body], state.cosine[body] = sincos(state.angle[body])


def origin(state: Any, body: int) -> tuple[np.float32, np.float32]:
    """Return where the origin is, from the centre of mass."""
    x, y = rotated(state, body, s.CENTER_X[body], s.CENTER_Y[body])
    return state.center_x[body] - x, state.center_y[body] - y


def follow(state: Any, body: int) -> None:
    """Update the origin from the centre of mass and the angle."""
    turn(state, body)
    state.x[body], state.y[body] = origin(state, body)


def travel(state: Any, body: int, time_s: np.float32) -> None:
    """Limit the velocities, then move the centre of mass and turn by them."""
    velocity_x, velocity_y, spin = state.velocity_x[body], state.velocity_y[body], state.spin[body]
    step_x, step_y, angle = time_s * velocity_x, time_s * velocity_y, time_s * spin
    squared = step_x * step_x + step_y * step_y
    if squared > _MAX_TRANSLATION * _MAX_TRANSLATION:
        share = _MAX_TRANSLATION / F(math.sqrt(squared))
        velocity_x, velocity_y = velocity_x * share, velocity_y * share
        state.velocity_x[body] = velocity_x
        state.velocity_y[body] = velocity_y
    if angle * angle > _MAX_ROTATION * _MAX_ROTATION:
        spin *= _MAX_ROTATION / abs(angle)
        state.spin[body] = spin
    state.center_x[body] += time_s * velocity_x
    state.center_y[body] += time_s * velocity_y
    state.angle[body] += time_s * spin


def begin_sweep(state: Any, body: int) -> None:
    """Let the sweep of a new step begin where the body is."""
    state.start_x[body] = state.center_x[body]
    state.start_y[body] = state.center_y[body]
    state.start_angle[body] = state.angle[body]


def advance_start(state: Any, body: int, progress: np.float32) -> None:
    """Let the sweep begin later: at `progress`, from 0 to 1, of the step.

    What stands is rounded like what moves, so that it drifts by last bits over a game, as in Box2D.
    """
    share = (progress - state.progress[body]) / (ONE - state.progress[body])
    left = ONE - share
    state.start_x[body] = left * state.start_x[body] + share * state.center_x[body]
    state.start_y[body] = left * state.start_y[body] + share * state.center_y[body]
    state.start_angle[body] = left * state.start_angle[body] + share * state.angle[body]
    state.progress[body] = progress


def advance(state: Any, body: int, progress: np.float32) -> None:
    """Put the body where it is at `progress` of the step, where its sweep now begins and ends."""
    advance_start(state, body, progress)
    state.center_x[body] = state.start_x[body]
    state.center_y[body] = state.start_y[body]
    state.angle[body] = state.start_angle[body]
    follow(state, body)


def update_box(state: Any, body: int) -> None:
    """Compute the box of the body's sweep, and enlarge the stored box if it does not contain it."""
    fixture = s.FIXTURE_OF[body]
    x, y = state.x[body], state.y[body]
    if body == PUCK:
        begin_x, begin_y, cosine, sine = state.start_x[body], state.start_y[body], ONE, ZERO
    else:
        sine, cosine = sincos(state.start_angle[body])
        begin_x = state.start_x[body] - (cosine * s.CENTER_X[body] - sine * s.CENTER_Y[body])
        begin_y = state.start_y[body] - (sine * s.CENTER_X[body] + cosine * s.CENTER_Y[body])
    low_x, low_y, high_x, high_y = _box(fixture, begin_x, begin_y, cosine, sine)
    end_low_x, end_low_y, end_high_x, end_high_y = _box(fixture, x, y, state.cosine[body], state.sine[body])
    low_x, low_y = min(low_x, end_low_x), min(low_y, end_low_y)
    high_x, high_y = max(high_x, end_high_x), max(high_y, end_high_y)
    box = (low_x, low_y, high_x, high_y)
    _store(state.near, body, box, ZERO)
    stored = state.stored[body]
    if stored[0] <= low_x and stored[1] <= low_y and high_x <= stored[2] and high_y <= stored[3]:
        return
    _store(state.stored, body, box, _MARGIN)
    ahead_x, ahead_y = TWO * (x - begin_x), TWO * (y - begin_y)
    stored[0 if ahead_x < ZERO else 2] += ahead_x
    stored[1 if ahead_y < ZERO else 3] += ahead_y
    state.is_new[body] = True


def _store(boxes: Any, body: int, box: Box, margin: np.float32) -> None:
    boxes[body, 0] = box[0] - margin
    boxes[body, 1] = box[1] - margin
    boxes[body, 2] = box[2] + margin
    boxes[body, 3] = box[3] + margin


def are_apart(boxes: Any, a: int, b: int, gap: Any) -> bool:
    """Return whether the boxes of two bodies are more than a gap (m) apart."""
    return bool(
        boxes[b, 0] - boxes[a, 2] > gap
        or boxes[b, 1] - boxes[a, 3] > gap
        or boxes[a, 0] - boxes[b, 2] > gap
        or boxes[a, 1] - boxes[b, 3] > gap
    )


def _box(fixture: int, x: np.float32, y: np.float32, cosine: np.float32, sine: np.float32) -> Box:
    """Return the tight box around a fixture, skin included."""
    radius = s.RADIUS[fixture]
    if fixture == s.PUCK_FIXTURE:
        return x - radius, y - radius, x + radius, y + radius
    low_x, low_y, high_x, high_y = HUGE, HUGE, -HUGE, -HUGE
    for k in range(s.VERTEX_COUNT[fixture]):
        vertex_x = (cosine * s.VERTEX_X[fixture, k] - sine * s.VERTEX_Y[fixture, k]) + x
        vertex_y = (sine * s.VERTEX_X[fixture, k] + cosine * s.VERTEX_Y[fixture, k]) + y
        low_x, low_y = min(low_x, vertex_x), min(low_y, vertex_y)
        high_x, high_y = max(high_x, vertex_x), max(high_y, vertex_y)
    return low_x - radius, low_y - radius, high_x + radius, high_y + radius
