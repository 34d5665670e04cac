"""`FaultyEnv` fails in the chosen call, as often as asked, and is an ordinary environment otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envfleet.testing import CountingEnv, FaultyEnv
from envfleet.testing.compare import mismatches
from envfleet.testing.faults import FAULTS, PlainError, once_marker


def test_without_a_fault_it_counts() -> None:
    faulty, ordinary = FaultyEnv(None, length=4), CountingEnv(length=4)
    assert mismatches(ordinary.reset(seed=1), faulty.reset(seed=1)) == []
    for action in range(4):
        assert mismatches(ordinary.step(action), faulty.step(action)) == []


@pytest.mark.parametrize("nth", [1, 3])
def test_the_chosen_call_fails_and_no_other(nth: int) -> None:
    env = FaultyEnv("raise", nth=nth, length=100)
    env.reset(seed=0)
    for number in range(1, 6):
        if number == nth:
            with pytest.raises(PlainError):
                env.step(0)
        else:
            env.step(0)


def test_zero_lets_every_call_fail() -> None:
    env = FaultyEnv("raise", "reset", nth=0)
    for _ in range(3):
        with pytest.raises(PlainError):
            env.reset()


def test_with_a_marker_only_the_first_instance_fails(tmp_path: Path) -> None:
    once = once_marker(str(tmp_path))
    with pytest.raises(PlainError):
        FaultyEnv("raise", "constructor", once=once)
    FaultyEnv("raise", "constructor", once=once).reset()


@pytest.mark.parametrize("fault", FAULTS[FAULTS.index("native_sleep") + 1 :])
def test_other_faults_change_the_results_of_a_step(fault: str) -> None:
    ordinary, faulty = CountingEnv(), FaultyEnv(fault)
    for env in (ordinary, faulty):
        env.reset(seed=0)
    expected: Any = ordinary.step(0)
    actual: Any = faulty.step(0)
    equal = [type(one) is type(other) and str(one) == str(other) for one, other in zip(expected, actual, strict=False)]
    assert len(actual) == 4 if fault == "too_few_values" else equal.count(False) == 1


def test_an_unknown_fault_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="fault is 'burn', expected None or one of raise, "):
        FaultyEnv("burn")
