"""Pairs of fixtures with overlapping bounding boxes, newest last.

A pair exists while the stored boxes overlap, and the order in which pairs came to be is the order in which contacts are
looked at and solved, so it decides last bits. After Box2D (E. Catto, zlib licence; see NOTICE).
"""

from __future__ import annotations

from typing import Any

from envfleet.envs.hockey.kernel import shapes as s
from envfleet.envs.hockey.kernel.bodies import are_apart, wake
from envfleet.envs.hockey.kernel.shapes import NUM_MOVING, NUM_PAIRS, PUCK, RACKET_ONE, RACKET_TWO, ZERO


def fixtures(state: Any, pair: int) -> tuple[int, int]:
    """Fixtures A and B of a pair."""
    if pair == s.CLASH and not state.is_first_order:
        return s.PAIR_B[pair], s.PAIR_A[pair]
    return s.PAIR_A[pair], s.PAIR_B[pair]


def find_pairs(state: Any) -> None:
    """Add pairs for bodies with a new bounding box."""
    if not (state.is_new[RACKET_ONE] or state.is_new[RACKET_TWO] or state.is_new[PUCK]):
        return
    order = 0 if state.is_first_order else 1
    for k in range(NUM_PAIRS):
        pair = s.PAIR_ORDER[order, k]
        if state.is_paired[pair]:
            continue
        a, b = s.BODY_OF[s.PAIR_A[pair]], s.BODY_OF[s.PAIR_B[pair]]
        is_new = state.is_new[b] or (a < NUM_MOVING and state.is_new[a])
        if is_new and not are_apart(state.stored, a, b, ZERO):
            state.is_paired[pair] = True
            state.is_touching[pair] = False
            state.is_enabled[pair] = True
            state.is_timed[pair] = False
            state.num_events[pair] = 0
            state.num_points[pair] = 0
            state.pairs[state.num_pairs] = pair
            state.num_pairs += 1
    state.is_new[:] = False


def drop_pair(state: Any, place: int) -> None:
    """Forget the pair at a place of the list."""
    pair = state.pairs[place]
    if state.num_points[pair] > 0:
        wake(state, s.BODY_OF[s.PAIR_A[pair]])
        wake(state, s.BODY_OF[s.PAIR_B[pair]])
    state.is_paired[pair] = False
    state.num_pairs -= 1
    for k in range(place, state.num_pairs):
        state.pairs[k] = state.pairs[k + 1]
