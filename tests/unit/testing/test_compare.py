"""Deep comparison: where two values differ, in which type, dtype, shape or bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from envfleet.testing.compare import mismatches

SPACES: dict[str, spaces.Space[Any]] = {
    "array": spaces.Box(-1, 1, (3,), np.float32),
    "dict": spaces.Dict({"a": spaces.MultiBinary(3), "b": spaces.Tuple([spaces.Discrete(5), spaces.Box(0, 1, (2,))])}),
    "sequence": spaces.Sequence(spaces.Discrete(4)),
    "text": spaces.Text(8),
}


@pytest.mark.parametrize("name", SPACES)
def test_samples_equal_themselves_and_no_other_sample(name: str) -> None:
    space = SPACES[name]
    space.seed(0)
    samples = [space.sample() for _ in range(5)]
    space.seed(0)
    assert not any(mismatches(sample, space.sample()) for sample in samples)
    assert mismatches(samples, list(reversed(samples)))


@pytest.mark.parametrize(
    ("expected", "actual", "path"),
    [
        (1, 1.0, "value"),
        (np.float32(1), np.float64(1), "value"),
        (np.zeros(2, np.float32), np.zeros(2), "value"),
        (np.zeros(2), np.zeros((2, 1)), "value"),
        ([1, (2, 3)], [1, (2, 4)], "value[1][1]"),
        ({"a": {"b": 1}}, {"a": {}}, "value['a']['b']"),
        ({}, {"a": None}, "value['a']"),
        (np.array([1, "x"], object), np.array([1, "y"], object), "value[1]"),
        (np.random.default_rng(0), np.random.default_rng(1), "value.state['state']['state']"),
        (0.0, float("nan"), "value"),
    ],
    ids=str,
)
def test_the_place_of_a_difference_is_named(expected: Any, actual: Any, path: str) -> None:
    assert path in [mismatch.path for mismatch in mismatches(expected, actual)]


def test_nan_equals_nan() -> None:
    values = {"array": np.array([np.nan, 1.0]), "number": float("nan"), "scalar": np.float32("nan")}
    copies = {"array": np.array([np.nan, 1.0]), "number": float("nan"), "scalar": np.float32("nan")}
    assert mismatches(values, copies) == []


def test_long_values_are_shortened() -> None:
    (mismatch,) = mismatches("a" * 1000, "b" * 1000)
    assert len(str(mismatch)) < 400
