"""A note on stderr while numba compiles; imported with the first kernel that is compiled."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from numba.core.event import Listener


class Note(Listener):  # type: ignore[misc]  # numba has no types
    """Listens for numba's work and tells of it once it takes long.

    Args:
        text: What to say; the time it took follows when all is done.
        after_s: How long is long.
    """

    def __init__(self, text: str, after_s: float) -> None:
        self._text, self._after_s = text, after_s
        self._timer: threading.Timer | None = None
        self._started_s = 0.0
        self._is_told = False

    def begin(self) -> None:
        """Something is compiled; called again, it changes nothing."""
        if self._timer is None:
            self._started_s = time.perf_counter()
            self._timer = threading.Timer(self._after_s, self._tell)
            self._timer.daemon = True
            self._timer.start()

    def _tell(self) -> None:
        self._is_told = True
        print(self._text, end="", file=sys.stderr, flush=True)  # noqa: T201  # which does nothing without a stderr

    def end(self) -> None:
        """All is compiled."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer.join()
        if self._is_told:
            print(f" {time.perf_counter() - self._started_s:.1f} s", file=sys.stderr)  # noqa: T201  # as above

    def on_start(self, _event: Any) -> None:
        """Numba compiles a function."""
        self.begin()

    def on_end(self, _event: Any) -> None:
        """Numba has compiled it; others may follow."""
