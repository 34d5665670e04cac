"""Slices of a batch in threads: all of them end before anything else happens."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable

import pytest
from tests.waiting import PATIENCE_S

from envfleet.errors import InvalidArgument
from envfleet.kernels import threads
from envfleet.kernels.threads import WORTH_NS, Team


@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
def test_slices_cover_every_row_once(num_threads: int) -> None:
    team = Team(7, num_threads)
    try:
        rows: list[int] = []

        def work(start: int, stop: int) -> int:
            rows.extend(range(start, stop))
            return stop - start

        slices = team.run(work)
        assert len(slices) == num_threads
        assert [start for start, _ in slices] == [sum(count for _, count in slices[:k]) for k in range(num_threads)]
        assert sorted(rows) == list(range(7))
    finally:
        team.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupt_waits_for_the_other_threads(error: type[BaseException]) -> None:
    """They write to memory that the caller may free once it has the exception."""
    team = Team(3, 3)
    is_raising, ended = threading.Event(), []

    def work(start: int, stop: int) -> int:
        if start == 0:
            is_raising.set()
            raise error
        assert is_raising.wait(PATIENCE_S)
        threading.Event().wait(0.05)
        ended.append(start)
        return 0

    try:
        with pytest.raises(error):
            team.run(work)
        assert sorted(ended) == [1, 2]
    finally:
        team.close()


def test_an_exception_in_another_thread_is_raised() -> None:
    team = Team(2, 2)
    try:
        with pytest.raises(ZeroDivisionError):
            team.run(lambda start, stop: 1 // (1 - start))
        assert team.run(lambda start, stop: 7 * start) == [(0, 0), (1, 7)]
    finally:
        team.close()


def test_more_threads_than_rows_are_refused() -> None:
    for num_threads in (0, -1, 4):
        with pytest.raises(InvalidArgument, match=f"workers={num_threads}: pass 1 to num_envs=3 threads"):
            Team(3, num_threads)


def test_work_is_shared_as_soon_as_it_is_worth_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million short steps stay in one thread; a thousand long ones, or rollouts of short ones, do not."""
    now_ns = 0
    monkeypatch.setattr(threads, "whole_cores", lambda: 4)
    monkeypatch.setattr(threads, "time", types.SimpleNamespace(perf_counter_ns=lambda: now_ns))

    def take(took_ns: float) -> Callable[[int, int], int]:
        def work(start: int, stop: int) -> int:
            nonlocal now_ns
            now_ns += int(took_ns)
            return stop - start

        return work

    team = Team(1000)
    try:
        for _ in range(20):
            assert team.run(take(1.9 * WORTH_NS)) == [(0, 1000)]
        assert len(team.run(take(2.1 * WORTH_NS), 8)) == 1  # nothing is known of eight steps
        for _ in range(8):
            slices = team.run(take(2.1 * WORTH_NS), 8)
        assert slices == [(0, 500), (500, 500)]
        assert len(team.run(take(1000 * WORTH_NS), 64)) == 1
        assert len(team.run(take(1000 * WORTH_NS), 64)) == 4  # one long step is enough
        assert len(team.run(take(1000 * WORTH_NS))) == 1
    finally:
        team.close()
