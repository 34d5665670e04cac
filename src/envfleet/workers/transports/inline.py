"""The one worker that is the caller's own thread: whoever rings its bell does its work."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Never

from numpy.typing import NDArray

from envfleet.errors import EnvfleetError
from envfleet.workers.arrays import ArraysSpec, FleetArrays
from envfleet.workers.board import ASKED, ASLEEP, DONE, Waiting, board_bytes, lines_of
from envfleet.workers.env_group import GroupPlan
from envfleet.workers.memory import HeapMail, Mail
from envfleet.workers.serve import Seat, Server


class InlineTransport:
    """The caller's own thread as a worker; see `Transport`.

    Args:
        plans: One.
        shared: The fleet's shared data by name.
    """

    can_kill = False
    note = ""

    def __init__(self, plans: Sequence[GroupPlan], shared: Mapping[str, NDArray[Any]]) -> None:
        line, owner = lines_of(bytearray(board_bytes(1)), 1)
        line[ASLEEP] = 1  # so that its bell is always rung
        self.lines = [line]
        self.requests: Mail = HeapMail()
        self.replies: list[Mail] = [HeapMail()]
        self.waiting = Waiting(owner, lambda timeout_s: False, long_ns=0)
        self._block: Any = None
        self._thread = threading.get_ident()
        seat = Seat(
            worker=0,
            first_slot=1,
            table_slot=1 + plans[0].rows.stop,
            line=line,
            owner=owner,
            requests=self.requests,
            replies=self.replies[0],
            waiting=self.waiting,
            ring=lambda: None,
            map_arrays=lambda spec: FleetArrays(spec, self._block),
            shared=shared,
            is_inline=True,
        )
        self.server: Server | None = Server(seat)
        self._answer = self.server.answer

    def start(self, timeout_s: float) -> None:
        """Do nothing: this thread runs already."""

    def allocate(self, spec: ArraysSpec) -> FleetArrays:
        """Allocate the arrays on the heap."""
        self._block = spec.block.allocate()
        return FleetArrays(spec, self._block)

    def ring(self, worker: int) -> None:
        """Do what is asked."""
        self._thread = threading.get_ident()
        try:
            self._answer()
        finally:
            self.lines[0][DONE] = self.lines[0][ASKED]  # also after Ctrl-C: nothing is under way

    def ended(self) -> list[int]:
        """Return no workers: this thread has not ended."""
        return []

    def how_ended(self, worker: int) -> tuple[None, None]:
        """Return nothing: a thread has no exit code."""
        return None, None

    def kill(self, worker: int) -> None:
        """Do nothing: a thread cannot be ended by force."""

    def replace(self, worker: int, plan: GroupPlan) -> Never:
        """Refuse: this thread is never lost."""
        raise EnvfleetError("the caller's thread cannot be replaced")

    def stack(self, worker: int) -> str:
        """Return the Python stack of the thread that used the fleet last."""
        return "".join(traceback.format_stack(sys._current_frames().get(self._thread)))  # noqa: SLF001  # no public name

    def pid(self, worker: int) -> int:
        """Return this process."""
        return os.getpid()

    def place(self, worker: int) -> str:
        """Return that it is this thread."""
        return "the caller's own thread"

    def close(self, timeout_s: float) -> None:
        """Do nothing: there is nothing to end."""
