"""Slices of a batch in threads: all of them end before anything else happens."""

from __future__ import annotations

import threading

import pytest

from envfleet.errors import InvalidArgument
from envfleet.kernels.threads import Crew, count_threads


@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
def test_slices_cover_every_row_once(num_threads: int) -> None:
    crew = Crew(num_threads, 7)
    try:
        rows: list[int] = []

        def work(start: int, stop: int) -> int:
            rows.extend(range(start, stop))
            return stop - start

        assert crew.run(work) == [stop - start for start, stop in crew.spans]
        assert sorted(rows) == list(range(7))
    finally:
        crew.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupt_waits_for_the_other_threads(error: type[BaseException]) -> None:
    """They write to memory that the caller may free once it has the exception."""
    crew = Crew(3, 3)
    is_raising, ended = threading.Event(), []

    def work(start: int, stop: int) -> int:
        if start == 0:
            is_raising.set()
            raise error
        assert is_raising.wait(10)
        threading.Event().wait(0.05)
        ended.append(start)
        return 0

    try:
        with pytest.raises(error):
            crew.run(work)
        assert sorted(ended) == [1, 2]
    finally:
        crew.close()


def test_an_exception_in_another_thread_is_raised() -> None:
    crew = Crew(2, 2)
    try:
        with pytest.raises(ZeroDivisionError):
            crew.run(lambda start, stop: 1 // (1 - start))
        assert crew.run(lambda start, stop: start) == [0, 1]
    finally:
        crew.close()


def test_more_threads_than_rows_are_refused() -> None:
    for asked in (0, -1, 4):
        with pytest.raises(InvalidArgument, match=f"workers={asked}: pass a number of threads from 1 to num_envs=3"):
            count_threads(3, asked)
    assert count_threads(3, None) == 1
