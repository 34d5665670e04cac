"""The thread that runs compiled functions: results, order, failures, and what is left behind."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from envfleet.native import NativeThread


@numba.njit(nogil=True)
def scale(values, factor):
    values += 1
    return values.sum(), values * factor


@numba.njit(nogil=True)
def refuse(value):
    if value > 0:
        raise MemoryError
    return value


def count_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_calls_are_made_in_order_with_whatever_types() -> None:
    values = np.zeros(4)
    with contextlib.closing(NativeThread()) as thread:
        thread.start([(scale, (values, 2.0)), (scale, (values, 3))])
        thread.start([(scale, (np.ones(2, np.float32), 2.0))])
        (first, doubled), (second, tripled) = thread.results()
        assert (first, second) == (4, 8)
        np.testing.assert_array_equal([doubled, tripled, values], [[2] * 4, [6] * 4, [2] * 4])
        [(total, found)] = thread.results()
        assert total == 4
        np.testing.assert_array_equal(found, [4, 4])


def test_a_third_set_is_refused() -> None:
    with contextlib.closing(NativeThread()) as thread:
        for value in (0, -1):
            thread.start([(refuse, (value,))])
        with pytest.raises(RuntimeError, match="take the results of the first"):
            thread.start([(refuse, (0,))])
        assert [thread.results(), thread.results()] == [[0], [-1]]


def test_a_failure_is_raised_once() -> None:
    with contextlib.closing(NativeThread()) as thread:
        thread.start([(refuse, (1,))])
        thread.start([(refuse, (0,))])
        with pytest.raises(MemoryError, match="ran out of memory"):
            thread.results()
        assert thread.results() == [0]


def test_threads_end_and_arguments_are_released() -> None:
    before, values = count_threads(), np.zeros(1000)
    held = sys.getrefcount(values)
    closed, dropped = NativeThread(), NativeThread()
    assert count_threads() == before + 2
    for thread in (closed, dropped):
        thread.start([(scale, (values, 2.0))])
    assert sys.getrefcount(values) > held
    closed.results()
    dropped.results()
    assert sys.getrefcount(values) == held
    dropped.start([(scale, (np.zeros(100_000), 2.0))])  # under way
    closed.close()
    del dropped, thread
    assert count_threads() == before
