"""Taxi as Gymnasium has it since 1.3: rain and fickle passengers repaired, with their probabilities as arguments."""

from __future__ import annotations

import numpy as np

from envfleet.envs.toy_text.taxi import _SIZE, Taxi, _is_open, act, begin


class TaxiV4(Taxi):
    """Gymnasium's Taxi-v4 as a kernel: the same spaces, draws, rewards, ends and infos.

    Without rain and fickle passengers it equals Taxi-v3. In the rain the taxi goes astray to its left or right, unless
    the way ahead is blocked: then it stays.
    """

    class Params(Taxi.Params):
        """Gymnasium's arguments of the same names."""

        rainy_probability: float = 0.8
        fickle_probability: float = 0.3

    @staticmethod
    def reset(state: Taxi.State, rng: np.random.Generator, params: Params) -> None:  # type: ignore[override]  # its own
        """Begin anywhere, with the passenger at one place and going to another."""
        begin(state, rng, params.fickle_passenger, params.fickle_probability)

    @staticmethod
    def step(state: Taxi.State, action: int, rng: np.random.Generator, params: Params) -> tuple[float, bool]:  # type: ignore[override]  # its own
        """Drive one cell, or let the passenger in or out."""
        draw = rng.random()
        state.prob = 1.0
        is_moved = False
        if action < 4:
            is_moved = _drive(state, action, draw, params.is_rainy, params.rainy_probability)
        return act(state, action, rng, is_moved)


def _drive(state: Taxi.State, action: int, draw: float, is_rainy: bool, ahead: float) -> bool:
    """Move the taxi; in the rain it goes ahead with the probability `ahead`. Returns whether it moved."""
    row, column = state.row, state.column
    down = (action == 0) * 1 - (action == 1) * 1
    right = (action == 2) * 1 - (action == 3) * 1
    state.orientation = action
    aside = (1.0 - ahead) / 2.0
    turn = 0
    if is_rainy:
        # Compared with rounded sums, as in Gymnasium; beyond the last of them, the first entry is taken.
        turn = 0 if draw < ahead else (-1 if draw < ahead + aside else (1 if draw < ahead + aside + aside else 0))
        state.prob = ahead if turn == 0 else aside
    new_row = min(max(row + down, 0), _SIZE - 1)
    is_blocked = new_row == row if down != 0 else not _is_open(row, column, right)
    # To the left (-1) is east of south and north of east; a move aside from a row is a move along a column.
    to_right = right if turn == 0 else -turn * down
    to_down = down if turn == 0 else turn * right
    if to_right != 0 and not _is_open(row, column, to_right):
        to_right = 0
    new_row = min(max(row + to_down, 0), _SIZE - 1)
    state.row = row if is_blocked else new_row
    state.column = column if is_blocked else column + to_right
    return (state.row != row) | (state.column != column)
