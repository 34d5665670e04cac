"""What the tests of transforms share."""

from __future__ import annotations

from typing import Any

import numpy as np

from envfleet.transforms import NormalizeObservation, NormalizeReward

CARTPOLE, PENDULUM = "envfleet/CartPole-v1", "InvertedPendulum-v5"
NORMALIZED = (NormalizeObservation(), NormalizeReward(gamma=0.9))


def assert_equal_steps(one: Any, other: Any) -> None:
    for first, second in zip(one[:4], other[:4], strict=True):
        assert np.asarray(first).dtype == np.asarray(second).dtype
        np.testing.assert_array_equal(first, second)
