"""Continuous collision: split the step at each impact of a body on a static one, so that nothing tunnels through walls.

After Box2D's continuous collision (E. Catto, zlib licence; see NOTICE). Rackets and puck do not stop each other like
this: a fast puck can fly through a racket, as in the public environment.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from envfleet.envs.hockey.kernel import shapes as s
from envfleet.envs.hockey.kernel.bodies import (
    advance,
    advance_start,
    are_apart,
    begin_sweep,
    follow,
    travel,
    update_box,
    wake,
)
from envfleet.envs.hockey.kernel.contacts import update_contact
from envfleet.envs.hockey.kernel.impact import time_of_impact
from envfleet.envs.hockey.kernel.pairs import find_pairs
from envfleet.envs.hockey.kernel.shapes import EPSILON, NUM_MOVING, ONE, SLOP, STEP_S, ZERO, F
from envfleet.envs.hockey.kernel.solver import MAX_CONTACTS, add_contact, correct_positions, prepare, solve_velocities
from envfleet.kernels import outlined

_MAX_EVENTS = 8
_LATEST = ONE - F(10) * EPSILON
_CORRECTED_SHARE = F(0.75)
_CORRECTED_ENOUGH = F(-1.5) * SLOP
_MAX_CORRECTIONS = 20
_APART = F(0.05)  # m; more than a racket's corners can stick out of its boxes at both ends of a turn of
_MAX_TURN = F(0.4)  # rad

Sweep = tuple[np.float32, np.float32, np.float32, np.float32, np.float32, np.float32, np.float32]


@outlined
def solve_impacts(state: Any) -> None:
    """Solve one impact after the other, the earliest first."""
    state.progress[:] = ZERO
    for k in range(state.num_pairs):
        state.is_timed[state.pairs[k]] = False
        state.num_events[state.pairs[k]] = 0
    while True:
        pair, time = _find_earliest(state)
        if pair < 0 or time > _LATEST:
            break
        _solve_impact(state, pair, time)


def _find_earliest(state: Any) -> tuple[int, np.float32]:
    earliest_pair, earliest = -1, ONE
    for place in range(state.num_pairs - 1, -1, -1):
        pair = state.pairs[place]
        a, b = s.BODY_OF[s.PAIR_A[pair]], s.BODY_OF[s.PAIR_B[pair]]
        if a < NUM_MOVING or s.IS_SENSOR[pair] or not state.is_enabled[pair] or state.num_events[pair] > _MAX_EVENTS:
            continue
        if not state.is_timed[pair]:
            if not state.is_awake[b]:
                continue
            state.time[pair] = _time(state, pair, a, b)
            state.is_timed[pair] = True
        if state.time[pair] < earliest:
            earliest_pair, earliest = pair, state.time[pair]
    return earliest_pair, earliest


def _time(state: Any, pair: int, a: int, b: int) -> np.float32:
    """Time of impact of a pair as a fraction of the step; 1 without an impact."""
    progress = max(state.progress[a], state.progress[b])
    if state.progress[a] < progress:
        advance_start(state, a, progress)
    elif state.progress[b] < progress:
        advance_start(state, b, progress)
    if are_apart(state.near, a, b, _APART) and abs(state.angle[b] - state.start_angle[b]) < _MAX_TURN:
        return ONE
    share = time_of_impact(state, pair)
    return ONE if share < ZERO else min(progress + (ONE - progress) * share, ONE)


def _solve_impact(state: Any, pair: int, time: np.float32) -> None:
    """Stop a body at its impact and continue from there."""
    a, b = s.BODY_OF[s.PAIR_A[pair]], s.BODY_OF[s.PAIR_B[pair]]
    sweep_a, sweep_b = _sweep(state, a), _sweep(state, b)
    advance(state, a, time)
    advance(state, b, time)
    update_contact(state, pair)
    state.is_timed[pair] = False
    state.num_events[pair] += 1
    if not state.is_touching[pair]:
        state.is_enabled[pair] = False
        _restore(state, a, sweep_a)
        _restore(state, b, sweep_b)
        return
    wake(state, b)
    count = _gather(state, pair, b, time)
    correct_positions(state, count, _CORRECTED_SHARE, _CORRECTED_ENOUGH, _MAX_CORRECTIONS)
    begin_sweep(state, b)
    prepare(state, count, False)
    solve_velocities(state, count)
    travel(state, b, (ONE - time) * STEP_S)
    follow(state, b)
    update_box(state, b)
    for k in range(state.num_pairs):
        if b in (s.BODY_OF[s.PAIR_A[state.pairs[k]]], s.BODY_OF[s.PAIR_B[state.pairs[k]]]):
            state.is_timed[state.pairs[k]] = False
    find_pairs(state)


def _gather(state: Any, first: int, b: int, time: np.float32) -> int:
    """Take in whatever standing thing the body touches at a time, the impact first; returns how many contacts."""
    add_contact(state, 0, first)
    count = 1
    for place in range(state.num_pairs - 1, -1, -1):
        pair = state.pairs[place]
        other = s.BODY_OF[s.PAIR_A[pair]]
        if pair == first or s.BODY_OF[s.PAIR_B[pair]] != b or other < NUM_MOVING or s.IS_SENSOR[pair]:
            continue
        sweep = _sweep(state, other)
        advance(state, other, time)
        update_contact(state, pair)
        if not state.is_touching[pair]:
            _restore(state, other, sweep)
        elif count < MAX_CONTACTS:
            add_contact(state, count, pair)
            count += 1
    return count


def _sweep(state: Any, body: int) -> Sweep:
    """Return the sweep of a body, and how far it is in the step."""
    progress, x, y, angle, end_x, end_y, end_angle = _parts(state)
    return progress[body], x[body], y[body], angle[body], end_x[body], end_y[body], end_angle[body]


def _restore(state: Any, body: int, sweep: Sweep) -> None:
    """Put a body back to where its sweep ended."""
    for values, value in zip(_parts(state), sweep):  # noqa: B905  # which cannot be compiled with strict
        values[body] = value
    follow(state, body)


def _parts(state: Any) -> Any:
    return state.progress, state.start_x, state.start_y, state.start_angle, state.center_x, state.center_y, state.angle
