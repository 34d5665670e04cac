"""Draws of the toy text environments: one random number each, compared with sums that are rounded as Gymnasium's."""

from __future__ import annotations

import numpy as np


def draw_turn(rng: np.random.Generator, ahead: float, aside: float) -> int:
    """Draw how a walker turns on slippery ground.

    Args:
        rng: Draws once, also where the ground is not slippery.
        ahead: Probability of no turn, 0.
        aside: Probability of each of the turns -1 and 1.
    """
    draw = rng.random()
    if draw < aside:
        return -1
    if draw < aside + ahead:
        return 0
    return 1 if draw < aside + ahead + aside else -1


def draw_equal(rng: np.random.Generator, count: int) -> int:
    """Draw one of `count` equally likely numbers from 0 on.

    Gymnasium adds up the shares one by one; so does this. If the sum stays below the draw, which for 300 numbers has a
    probability of 4e-15, the last number is taken.
    """
    draw = rng.random()
    share = 1.0 / count
    total = share
    index = 0
    while total <= draw and index < count - 1:
        index += 1
        total += share
    return index
