"""Turns of users: the one served next, and how many calls run at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.service.serving import make_settings
from tests.waiting import PATIENCE_S

from envfleet.service.refusals import Busy
from envfleet.service.turns import Turns
from envfleet.service.users.auth import Identity


def user(number: int) -> Identity:
    return Identity(number, f"user{number}", "participant", number, None, None)


def run(turns: Turns, calls: list[tuple[int, float]]) -> list[int]:
    """Make calls of users that take so many seconds, all at once; return users in the order of their ends."""
    ended: list[int] = []

    async def call(number: int, seconds: float) -> None:
        async with turns.take(user(number), computes=True):
            await asyncio.sleep(seconds)
        ended.append(number)

    async def main() -> None:
        await asyncio.wait_for(asyncio.gather(*(call(*one) for one in calls)), PATIENCE_S)

    asyncio.run(main())
    return ended


def test_many_calls_of_one_user_do_not_delay_another(tmp_path: Path) -> None:
    ended = run(Turns(make_settings(tmp_path)), [(1, 0.2)] * 10 + [(2, 0.0)])
    assert ended.index(2) <= 2  # behind no more than the calls that ran when it came
    assert ended.count(1) == 10


def test_a_user_computes_one_call_at_a_time(tmp_path: Path) -> None:
    turns, running, most = Turns(make_settings(tmp_path)), 0, 0

    @contextlib.asynccontextmanager
    async def counted() -> AsyncIterator[None]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        yield
        running -= 1

    async def call() -> None:
        async with turns.take(user(1), computes=True), counted():
            await asyncio.sleep(0.01)

    async def main() -> None:
        await asyncio.wait_for(asyncio.gather(*(call() for _ in range(20))), PATIENCE_S)

    asyncio.run(main())
    assert most == 1


def test_a_canceled_call_leaves_its_place(tmp_path: Path) -> None:
    turns = Turns(make_settings(tmp_path))

    async def main() -> None:
        async with turns.take(user(1), computes=True):
            waiting = asyncio.ensure_future(turns.take(user(1), computes=True).__aenter__())
            await asyncio.sleep(0.05)
            assert turns.num_waiting == 1
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert turns.num_waiting == 0
        async with turns.take(user(1), computes=True):
            pass

    asyncio.run(main())


def test_a_turn_that_does_not_come_is_refused(tmp_path: Path) -> None:
    turns = Turns(make_settings(tmp_path, queue_timeout_s=0.1))

    async def main() -> None:
        async with turns.take(user(1), computes=True):
            with pytest.raises(Busy, match=r"no turn came within 0\.1 s"):
                async with turns.take(user(1), computes=True):
                    pass
        async with turns.take(user(1), computes=True):
            pass

    asyncio.run(main())
