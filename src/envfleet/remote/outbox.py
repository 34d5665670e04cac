"""Calls to some sub-environments while others are under way: to each service one after the other, each made once."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import CallPending, CallTimeout, EnvfleetError, FleetBroken
from envfleet.packing.values import pack
from envfleet.remote.exchange import KEY_BYTES, Fields, ServiceCall, Shard, make_body, may_be_made

Read = Callable[["Letter", dict[str, Any]], Any]
"""Reads a reply; raises `WireError` if it is none."""


@dataclasses.dataclass(eq=False)
class Letter:
    """A call to one service.

    Attributes:
        shard: The part of the fleet.
        verb: `"step"` or `"reset"`.
        fields: What is asked.
        rows: The sub-environments, by their index in the fleet.
        call: What is sent, once it was its turn; always the same.
        answer: What the reply says.
        is_answered: Whether there is one.
    """

    shard: Shard
    verb: str
    fields: Fields
    rows: NDArray[np.int64]
    call: ServiceCall | None = None
    answer: Any = None
    is_answered: bool = False

    def send(self) -> dict[str, Any]:
        """Send it, or send it again."""
        if self.call is None:
            seq = self.shard.seq
            self.call = ServiceCall(
                self.shard, self.verb, seq, make_body(seq, secrets.token_bytes(KEY_BYTES), self.fields)
            )
        return self.call.send()


class Outbox:
    """What was sent to some sub-environments and not received.

    A service makes one call of a fleet after the other. One that is not answered stops those behind it; they go on when
    `take` or `ask` is called again.

    Args:
        shards: Who is called.
        crew: A thread for each of them.
        read: Reads replies, in those threads.

    Attributes:
        under_way: Sub-environments whose step was sent and not received.
    """

    def __init__(self, shards: Sequence[Shard], crew: concurrent.futures.Executor, read: Read) -> None:
        self._crew, self._read = crew, read
        self._lanes: dict[Shard, collections.deque[Letter]] = {shard: collections.deque() for shard in shards}
        self._busy: set[Shard] = set()
        self._stuck: set[Shard] = set()
        self._problems: collections.deque[Exception] = collections.deque()
        self._arrived: collections.deque[tuple[Letter, int]] = collections.deque()  # one for each row of a letter
        self._asked: list[Letter] = []  # resets that are not all answered
        self._news = threading.Condition()
        self.under_way: set[int] = set()

    @property
    def is_empty(self) -> bool:
        """Whether everything was received."""
        return not (self.under_way or self._asked)

    @property
    def is_stuck(self) -> bool:
        """Whether something was not answered."""
        return bool(self._stuck)

    def check_received(self, rows: Sequence[int]) -> None:
        """Check that no steps of `rows` are under way.

        Raises:
            CallPending: Some are.
        """
        busy = sorted(self.under_way.intersection(rows))
        if busy:
            raise CallPending(f"sub-environments {busy[:10]} are under way: call recv() until it returned them")

    def check_idle(self, rows: Sequence[int]) -> None:
        """Check that neither steps nor resets of `rows` are under way.

        Raises:
            CallPending: Steps are.
            FleetBroken: A reset was not answered.
        """
        self.check_received(rows)
        if any(np.isin(letter.rows, rows).any() for letter in self._asked):
            raise _unknown_reset()

    # ------------------------------------------------------------------ for the caller

    def send(self, letters: Sequence[Letter]) -> None:
        """Send steps of sub-environments that are idle; `take` tells what comes of them."""
        with self._news:
            for letter in letters:
                self.under_way.update(letter.rows.tolist())
                self._post(letter)

    def take(self, wanted: int, timeout_s: float | None) -> list[tuple[Letter, NDArray[np.int64]]]:
        """Wait until so many sub-environments have stepped.

        Args:
            wanted: How many, not more than are under way.
            timeout_s: How long to wait; `None` for as long as it takes.

        Returns:
            Answered letters in the order they came, and which rows of each are told now.

        Raises:
            CallTimeout: They did not come in time. Nothing is lost: call again.
            EnvfleetError: As `ServiceLink.post`. After a refusal those that were refused are idle; else call again.
        """
        with self._news:
            self._wait(lambda: len(self._arrived) >= wanted, timeout_s)
            taken: dict[Letter, list[int]] = {}
            for _ in range(wanted):
                letter, place = self._arrived.popleft()
                taken.setdefault(letter, []).append(place)
                self.under_way.discard(int(letter.rows[place]))
        return [(letter, np.array(places)) for letter, places in taken.items()]

    def ask(self, letters: Sequence[Letter]) -> list[Any]:
        """Make resets of sub-environments that are idle, and wait; returns what was read of each reply.

        Raises:
            FleetBroken: Other resets were not answered.
            EnvfleetError: As `take`.
        """
        with self._news:
            if not self._asked:
                self._asked = list(letters)
            elif [letter.shard for letter in letters] != [letter.shard for letter in self._asked] or any(
                pack(dict(mine.fields)) != pack(dict(other.fields))
                for mine, other in zip(letters, self._asked, strict=True)
            ):
                raise _unknown_reset()
            asked = self._asked
            for letter in asked:
                if not letter.is_answered and letter not in self._lanes[letter.shard]:
                    self._post(letter)
            try:
                self._wait(lambda: all(letter.is_answered for letter in asked), None)
            except EnvfleetError:
                if not any(letter.is_answered or letter in self._lanes[letter.shard] for letter in asked):
                    self._asked = []  # refused: nothing was made
                raise
            self._asked = []
        return [letter.answer for letter in asked]

    def drop(self) -> None:
        """Forget everything, once nothing is being sent."""
        with self._news:
            for lane in self._lanes.values():
                while len(lane) > 1:
                    lane.pop()
            self._news.wait_for(lambda: not self._busy)
            for lane in self._lanes.values():
                lane.clear()
            self._stuck.clear()
            self._problems.clear()
            self._arrived.clear()
            self._asked = []
            self.under_way.clear()

    def await_end(self, timeout_s: float) -> None:
        """Send nothing more, and wait until nothing is being sent, but not for longer."""
        with self._news:
            self._stuck.update(self._lanes)
            self._news.wait_for(lambda: not self._busy, timeout_s)

    # ------------------------------------------------------------------ one after the other

    def _post(self, letter: Letter) -> None:
        self._lanes[letter.shard].append(letter)
        self._go_on(letter.shard)

    def _go_on(self, shard: Shard) -> None:
        """Have the letters to a service sent, unless they are."""
        if shard not in self._busy and shard not in self._stuck and self._lanes[shard]:
            self._busy.add(shard)
            self._crew.submit(self._drain, shard)

    def _wait(self, is_done: Callable[[], bool], timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if self._stuck:
            stuck, self._stuck = self._stuck, set()
            self._problems = collections.deque(each for each in self._problems if not may_be_made(each))
            for shard in stuck:
                self._go_on(shard)
        while not is_done():
            if self._problems:
                raise self._problems.popleft()
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0.0:
                raise CallTimeout("recv", timeout_s or 0.0)
            self._news.wait(left_s)

    def _drain(self, shard: Shard) -> None:
        """Send the letters to a service until there are none, or one is not answered."""
        lane = self._lanes[shard]
        while True:
            with self._news:
                if not lane or shard in self._stuck:
                    self._busy.discard(shard)
                    self._news.notify_all()
                    return
                letter = lane[0]
            try:
                letter.answer = self._read(letter, letter.send())
            except Exception as error:  # noqa: BLE001 - whoever waits gets it
                with self._news:
                    self._fail(letter, error)
            else:
                with self._news:
                    self._arrive(letter)

    def _arrive(self, letter: Letter) -> None:
        self._lanes[letter.shard].popleft()
        letter.shard.seq += 1
        letter.is_answered = True
        if letter.verb == "step":
            self._arrived.extend((letter, place) for place in range(len(letter.rows)))
        self._news.notify_all()

    def _fail(self, letter: Letter, error: Exception) -> None:
        self._problems.append(error)
        if may_be_made(error):
            self._stuck.add(letter.shard)
        else:  # it was not made
            self._lanes[letter.shard].popleft()
            letter.call = None
            self.under_way.difference_update(letter.rows.tolist())
        self._news.notify_all()


def _unknown_reset() -> FleetBroken:
    return FleetBroken(
        "a reset was not answered, so nobody knows whether it was made: make the same call again, which never makes it "
        "twice, or reset() all sub-environments"
    )
