"""Running moments against Gymnasium's, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.wrappers.utils import RunningMeanStd

from envfleet.native.moments import discount, normalize, update_moments


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 5)], ids=str)
def test_moments_equal_gymnasiums(shape: tuple[int, ...]) -> None:
    rng, size = np.random.default_rng(0), int(np.prod(shape))
    theirs = RunningMeanStd(shape=shape, dtype=np.float64)
    mean, var, count = np.zeros(size), np.ones(size), 1e-4
    for num_rows in (1, 7, 8, 300):
        rows = rng.normal(1e3, 2.0, (num_rows, *shape))
        theirs.update(rows)
        update_moments(rows.reshape(num_rows, size), mean, var, count)
        count += num_rows
        np.testing.assert_array_equal(mean, np.ravel(theirs.mean))
        np.testing.assert_array_equal(var, np.ravel(theirs.var))


def test_rows_are_normalized_as_numpy_does() -> None:
    rows = np.random.default_rng(1).normal(size=(6, 4))
    mean, var = np.linspace(-1, 1, 4), np.linspace(0.1, 2, 4)
    out = np.empty_like(rows)
    normalize(rows, mean, var, 1e-8, out)
    np.testing.assert_array_equal(out, (rows - mean) / np.sqrt(var + 1e-8))


def test_a_termination_drops_earlier_rewards() -> None:
    returns, rewards = np.array([10.0, 10.0, 0.0]), np.array([1.0, 2.0, 3.0])
    discount(returns, rewards, np.array([False, True, False]), 0.5)
    np.testing.assert_array_equal(returns, [6.0, 2.0, 3.0])
