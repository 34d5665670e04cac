"""Where answers of actors arrive, with a doorbell that can be polled beside pipes."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from concurrent.futures import Future
from typing import Any

import ray


class Mailbox:
    """Collects the outcomes of actor calls, in whatever thread Ray delivers them.

    Attributes:
        fd: Readable while there is something to take.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: collections.deque[tuple[Any, Future[Any]]] = collections.deque()
        self.fd, self._bell_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._bell_fd, False)
        self._is_open = True

    def expect(self, ref: ray.ObjectRef[Any], sender: Any) -> None:
        """Have the outcome of a call delivered here, with `sender` beside it."""
        ref.future().add_done_callback(lambda future: self._deliver(sender, future))

    def fail(self, error: BaseException, sender: Any) -> None:
        """Deliver the outcome of a call that could not even be made."""
        future: Future[Any] = Future()
        future.set_exception(error)
        self._deliver(sender, future)

    def _deliver(self, sender: Any, future: Future[Any]) -> None:
        with self._lock:
            if not self._is_open:
                return
            self._outcomes.append((sender, future))
            with contextlib.suppress(BlockingIOError):  # full: it rings already
                os.write(self._bell_fd, b"!")

    def take(self) -> list[tuple[Any, Future[Any]]]:
        """Take what came, in order."""
        with self._lock:
            with contextlib.suppress(BlockingIOError):
                os.read(self.fd, 1 << 16)
            outcomes = list(self._outcomes)
            self._outcomes.clear()
            return outcomes

    def close(self) -> None:
        """Take nothing in any more; idempotent."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._outcomes.clear()
                os.close(self.fd)
                os.close(self._bell_fd)
