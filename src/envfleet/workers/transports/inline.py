"""Worker in the calling thread: waking it runs its request."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from envfleet.workers.board import ASKED, ASLEEP, DONE, Waiter
from envfleet.workers.messages import GroupPlan
from envfleet.workers.serve import Server
from envfleet.workers.transports.local import LocalTransport


class InlineTransport(LocalTransport):
    """Worker in the calling thread; see `Transport`.

    Args:
        plans: Plan of the worker.
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
        """Do nothing; the calling thread needs no start."""

    def ring(self, worker: int) -> None:
        """Run the pending request."""
        self._thread = threading.get_ident()
        try:
            self._answer()
        finally:
            self.lines[0][DONE] = self.lines[0][ASKED]  # also after Ctrl-C: nothing is under way

    def stack(self, worker: int) -> str:
        """Return the Python stack of the thread that last called the fleet."""
        return "".join(traceback.format_stack(sys._current_frames().get(self._thread)))  # noqa: SLF001  # no public name

    def place(self, worker: int) -> str:
        """Return a description of the calling thread."""
        return "the caller's own thread"
