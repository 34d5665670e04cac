"""A note on stderr of work that takes long."""

from __future__ import annotations

import sys
import threading
import time


class Note:
    """A context in which something may take long; says so once it does, and at the end how long it took.

    Args:
        text: What to say.
        after_s: How long is long.
    """

    def __init__(self, text: str, after_s: float = 0.3) -> None:
        self._text = text
        self._timer = threading.Timer(after_s, self._tell)
        self._timer.daemon = True
        self._is_told = False

    def __enter__(self) -> None:
        self._started_s = time.perf_counter()
        self._timer.start()

    def _tell(self) -> None:
        self._is_told = True
        print(self._text, end="", file=sys.stderr, flush=True)  # noqa: T201  # which does nothing without a stderr

    def __exit__(self, *_error: object) -> None:
        self._timer.cancel()
        self._timer.join()
        if self._is_told:
            print(f" {time.perf_counter() - self._started_s:.1f} s", file=sys.stderr)  # noqa: T201  # as above
