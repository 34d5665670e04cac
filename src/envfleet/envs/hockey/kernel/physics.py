"""One physics step: contacts, islands of bodies that touch, and what would fly through a wall.

After Box2D (E. Catto, zlib license; see NOTICE); its order of operations determines the last bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey.kernel import shapes as s
from envfleet.envs.hockey.kernel.bodies import begin_sweep, origin, travel, turn, update_box, wake
from envfleet.envs.hockey.kernel.contacts import update_contacts
from envfleet.envs.hockey.kernel.impacts import solve_impacts
from envfleet.envs.hockey.kernel.pairs import find_pairs
from envfleet.envs.hockey.kernel.shapes import NUM_MOVING, ONE, PUCK, RACKET_ONE, RACKET_TWO, SLOP, STEP_S, ZERO, F
from envfleet.envs.hockey.kernel.solver import (
    MAX_CONTACTS,
    add_contact,
    correct_positions,
    prepare,
    solve_velocities,
    store_impulses,
    warm_start,
)
from envfleet.kernels import outlined

_CORRECTED_SHARE = F(0.2)
_CORRECTED_ENOUGH = F(-3) * SLOP
_STILL_S = F(0.5)
_STILL_SPEED_SQUARED = F(0.01) * F(0.01)
_STILL_SPIN = F(2) / F(180) * F(np.pi)
_STILL_SPIN_SQUARED = _STILL_SPIN * _STILL_SPIN


@outlined
def step_physics(state: Any) -> None:
    """Let one time step pass."""
    find_pairs(state)
    update_contacts(state)
    _solve_islands(state)
    solve_impacts(state)
    state.force_x[:] = ZERO
    state.force_y[:] = ZERO
    state.torque[:] = ZERO


@outlined
def _solve_islands(state: Any) -> None:
    for k in range(state.num_pairs):
        state.is_taken[state.pairs[k]] = False
    state.is_moved[:] = False
    for body in (PUCK, RACKET_TWO, RACKET_ONE):
        if state.is_awake[body] and not state.is_moved[body]:
            num_bodies, num_contacts = _gather(state, body)
            _solve_island(state, num_bodies, num_contacts)
    for body in (PUCK, RACKET_TWO, RACKET_ONE):
        if state.is_moved[body]:
            update_box(state, body)
    find_pairs(state)


def _gather(state: Any, seed: int) -> tuple[int, int]:
    """Collect the bodies that touch each other and a first one, depth first.

    Returns:
        How many bodies and how many contacts the island has.
    """
    num_bodies, num_contacts, num_waiting = 0, 0, 1
    state.waiting[0] = seed
    state.is_moved[seed] = True
    while num_waiting > 0:
        num_waiting -= 1
        body = state.waiting[num_waiting]
        state.island[num_bodies] = body
        num_bodies += 1
        wake(state, body)
        for place in range(state.num_pairs - 1, -1, -1):
            pair = state.pairs[place]
            a, b = s.BODY_OF[s.PAIR_A[pair]], s.BODY_OF[s.PAIR_B[pair]]
            if body not in (a, b) or state.is_taken[pair] or s.IS_SENSOR[pair] or num_contacts == MAX_CONTACTS:
                continue
            if not (state.is_touching[pair] and state.is_enabled[pair]):
                continue
            add_contact(state, num_contacts, pair)
            num_contacts += 1
            state.is_taken[pair] = True
            other = a + b - body
            if other < NUM_MOVING and not state.is_moved[other]:
                state.waiting[num_waiting] = other
                num_waiting += 1
                state.is_moved[other] = True
    return num_bodies, num_contacts


def _solve_island(state: Any, num_bodies: int, num_contacts: int) -> None:
    for k in range(num_bodies):
        _accelerate(state, state.island[k])
    for k in range(num_contacts):
        if state.c_a[k] >= NUM_MOVING:
            begin_sweep(state, state.c_a[k])
    if num_contacts > 0:
        prepare(state, num_contacts, True)
        warm_start(state, num_contacts)
        solve_velocities(state, num_contacts)
        store_impulses(state, num_contacts)
    for k in range(num_bodies):
        body = state.island[k]
        travel(state, body, STEP_S)
        turn(state, body)
    is_corrected = correct_positions(state, num_contacts, _CORRECTED_SHARE, _CORRECTED_ENOUGH, c.POSITION_ITERATIONS)
    _settle(state, num_bodies, is_corrected)


def _settle(state: Any, num_bodies: int, is_corrected: bool) -> None:
    """Update the origins of the bodies; an island that has been still for long falls asleep."""
    still_s = _STILL_S
    for k in range(num_bodies):
        body = state.island[k]
        state.x[body], state.y[body] = origin(state, body)
        still_s = min(still_s, _rest(state, body))
    if still_s >= _STILL_S and is_corrected:
        for k in range(num_bodies):
            _fall_asleep(state, state.island[k])


def _accelerate(state: Any, body: int) -> None:
    """Let forces and damping act."""
    begin_sweep(state, body)
    velocity_x = state.velocity_x[body] + STEP_S * (s.INVERSE_MASS[body] * state.force_x[body])
    velocity_y = state.velocity_y[body] + STEP_S * (s.INVERSE_MASS[body] * state.force_y[body])
    spin = state.spin[body] + (STEP_S * s.INVERSE_INERTIA[body]) * state.torque[body]
    damping = max(ZERO, min(ONE - STEP_S * state.linear_damping[body], ONE))
    state.velocity_x[body] = velocity_x * damping
    state.velocity_y[body] = velocity_y * damping
    state.spin[body] = spin * max(ZERO, min(ONE - STEP_S * state.angular_damping[body], ONE))


def _rest(state: Any, body: int) -> np.float32:
    """Return how long the body has been still (s)."""
    x, y, spin = state.velocity_x[body], state.velocity_y[body], state.spin[body]
    if spin * spin > _STILL_SPIN_SQUARED or x * x + y * y > _STILL_SPEED_SQUARED:
        state.still_s[body] = ZERO
    else:
        state.still_s[body] += STEP_S
    return F(state.still_s[body])


def _fall_asleep(state: Any, body: int) -> None:
    state.is_awake[body] = False
    state.still_s[body] = ZERO
    state.velocity_x[body] = ZERO
    state.velocity_y[body] = ZERO
    state.spin[body] = ZERO
