"""Workers as threads of this process, for sub-environments that release the GIL."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from envfleet.workers.board import ASKED, Verb, Waiter
from envfleet.workers.messages import GroupPlan
from envfleet.workers.serve import Server
from envfleet.workers.transports.local import LocalTransport


def _make_bell() -> threading.Lock:
    """Return a locked lock, which is released to wake the thread that waits for it.

    Not an `Event`: Ctrl-C in its Python code could leave it locked, and then nobody could be woken any more.
    """
    bell = threading.Lock()
    bell.acquire()
    return bell


def _ring(bell: threading.Lock) -> None:
    with contextlib.suppress(RuntimeError):  # released already, and not yet noticed
        bell.release()


def _sleep(bell: threading.Lock, timeout_s: float) -> bool:
    """Sleep until woken; return False, since no other event is possible."""
    bell.acquire(timeout=timeout_s)
    return False


class ThreadTransport(LocalTransport):
    """Worker threads; see `Transport`.

    Args:
        plans: Plan of each worker.
        shared: The fleet's shared data by name.
    """

    def __init__(self, plans: Sequence[GroupPlan], shared: Mapping[str, NDArray[Any]]) -> None:
        super().__init__(plans, shared)
        self._bell, self._bells = _make_bell(), [_make_bell() for _ in plans]
        # Awake, a thread would hold the interpreter's lock that the others need.
        self.waiter = Waiter(self._owner, self._owner, partial(_sleep, self._bell))
        self._threads: list[threading.Thread] = []

    def start(self, timeout_s: float) -> None:
        """Start all workers."""
        for plan, line, bell in zip(self._plans, self.lines, self._bells, strict=True):
            context = self._context_of(
                plan, Waiter(line, self._owner, partial(_sleep, bell)), partial(_ring, self._bell)
            )
            name = f"envfleet worker {plan.worker}"
            self._threads.append(threading.Thread(target=Server(context).run, name=name, daemon=True))
            self._threads[-1].start()

    def ring(self, worker: int) -> None:
        """Wake a sleeping worker."""
        _ring(self._bells[worker])

    def stack(self, worker: int) -> str:
        """Return the thread's Python stack."""
        frame = sys._current_frames().get(self._threads[worker].ident or 0)  # noqa: SLF001  # no public name for it
        return "".join(traceback.format_stack(frame)) if frame is not None else "(the thread has ended)"

    def place(self, worker: int) -> str:
        """Return a description of the thread."""
        return "a thread of this process"

    def close(self, timeout_s: float) -> None:
        """Ask workers to close, unless they were asked, and wait; a thread that does not end in time is abandoned."""
        deadline_s = time.monotonic() + timeout_s
        for line, bell in zip(self.lines, self._bells, strict=True):
            if line[ASKED] & 7 != Verb.CLOSE:
                line[ASKED] = (line[ASKED] >> 4) + 1 << 4 | Verb.CLOSE
                _ring(bell)
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            super().close(0.0)
