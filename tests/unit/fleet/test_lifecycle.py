"""Errors for calls that do not fit the state of a fleet."""

from __future__ import annotations

import numpy as np
import pytest

from envfleet.errors import CallPending, FleetBroken, FleetClosed, NothingPending, ResetNeeded
from envfleet.fleet.lifecycle import Lifecycle, refuse, refuse_ended


@pytest.mark.parametrize(
    ("call", "state", "kind", "words"),
    [
        ("step()", Lifecycle.NEW, ResetNeeded, r"before the first reset: call reset\(\) first"),
        ("step()", Lifecycle.PENDING, CallPending, "call recv"),
        ("step()", Lifecycle.TORN, ResetNeeded, r"reset all sub-environments with reset\(\) first"),
        ("step()", Lifecycle.CLOSED, FleetClosed, "make a new one"),
        ("recv()", Lifecycle.READY, NothingPending, r"call send\(actions\) first"),
    ],
)
def test_each_state_has_an_error_with_a_remedy(call: str, state: Lifecycle, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        refuse(call, state, None, "call recv() first")
    assert str(caught.value).startswith(call)


def test_a_broken_fleet_names_what_broke_it() -> None:
    failure = RuntimeError("out of memory\nsecond line")
    with pytest.raises(FleetBroken, match=r'\(out of memory\): close it .*on_failure="restart"') as caught:
        refuse("step()", Lifecycle.BROKEN, failure)
    assert caught.value.__cause__ is failure
    with pytest.raises(FleetBroken, match="of an unknown cause"):
        refuse("step()", Lifecycle.BROKEN, None)


def test_ended_episodes_are_named() -> None:
    ended = np.array([False, True, False, True])
    refuse_ended(ended, np.array([0, 2]))
    with pytest.raises(ResetNeeded, match=r"sub-environments \[3\] have ended and autoreset is DISABLED"):
        refuse_ended(ended, np.array([2, 3]))
    with pytest.raises(ResetNeeded, match=r"\[0, 1, 2, 3, 4, 5, 6, 7, 8, 9\] … have ended"):
        refuse_ended(np.ones(12, bool))
