"""Requests of a fleet, divided among its workers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envfleet.errors import InvalidArgument
from envfleet.fleet import engine as seam
from envfleet.workers.division import check_states, messages_of, split

SPANS = [range(3), range(3, 5), range(5, 6)]


@given(st.permutations(range(6)), st.integers(1, 6))
def test_each_worker_gets_its_rows_in_order(order: list[int], count: int) -> None:
    rows = np.array(order[:count])
    parts = split(rows, SPANS)
    assert sorted(place for _, places, _ in parts for place in places) == list(range(count))
    for worker, places, local in parts:
        assert places == sorted(places)
        assert [SPANS[worker].start + row for row in local] == rows[places].tolist()


def test_without_rows_all_are_asked() -> None:
    assert split(None, SPANS) == [(0, [0, 1, 2], [0, 1, 2]), (1, [3, 4], [0, 1]), (2, [5], [0])]


def test_values_go_to_the_worker_of_their_row() -> None:
    assert messages_of(seam.SetAttr("gravity", list("abcdef")), SPANS) == {
        0: ("set_attr", ("gravity", ["a", "b", "c"])),
        1: ("set_attr", ("gravity", ["d", "e"])),
        2: ("set_attr", ("gravity", ["f"])),
    }


def test_states_are_counted_and_checked() -> None:
    with pytest.raises(InvalidArgument, match="states has 2 entries, expected a list of 3"):
        check_states(seam.SetState([None, None]), 3)
    with pytest.raises(InvalidArgument, match=r"states\[0\] is of type NoneType and not a saved state"):
        check_states(seam.SetState([None]), 1)
