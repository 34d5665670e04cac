"""Ctrl-C as a request: the round that is under way is finished, and everything is saved."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Take Ctrl-C and SIGTERM for requests to stop; a second one does what it always does.

    Outside the main thread, where Python lets nobody do that, signals stay as they are.

    Yields:
        Whether somebody has asked.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(_number: int, _frame: FrameType | None) -> None:
        asked.set()
        restore()

    for number in _SIGNALS:
        signal.signal(number, ask)
    try:
        yield asked.is_set
    finally:
        restore()
