"""The one worker that is the caller's own thread: waking it does its work."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from envfleet.workers.board import ASKED, ASLEEP, DONE, Waiter
from envfleet.workers.env_group import GroupPlan
from envfleet.workers.serve import Server
from envfleet.workers.transports.local import LocalTransport


class InlineTransport(LocalTransport):
    """The caller's own thread as a worker; see `Transport`.

    Args:
        plans: One.
        shared: The fleet's shared data by name.
    """

    def __init__(self, plans: Sequence[GroupPlan], shared: Mapping[str, NDArray[Any]]) -> None:
        super().__init__(plans, shared)
        self.lines[0][ASLEEP] = 1  # so that its bell is always rung
        self.waiter = Waiter(self._owner, self._owner, lambda timeout_s: False)
        self._thread = threading.get_ident()
        self.server = Server(self._context_of(plans[0], self.waiter, lambda: None, is_inline=True))
        self._answer = self.server.answer

    def start(self, timeout_s: float) -> None:
        """Do nothing: this thread runs already."""

    def ring(self, worker: int) -> None:
        """Do what is asked."""
        self._thread = threading.get_ident()
        try:
            self._answer()
        finally:
            self.lines[0][DONE] = self.lines[0][ASKED]  # also after Ctrl-C: nothing is under way

    def stack(self, worker: int) -> str:
        """Return the Python stack of the thread that used the fleet last."""
        return "".join(traceback.format_stack(sys._current_frames().get(self._thread)))  # noqa: SLF001  # no public name

    def place(self, worker: int) -> str:
        """Return that it is this thread."""
        return "the caller's own thread"
