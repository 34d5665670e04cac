"""Ctrl-C as a request: the round that is under way is finished, and everything is saved; a second one is Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NOTICE = "\rSaving after this round; Ctrl-C again ends at once, without saving."  # from the ^C that a terminal shows


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Take Ctrl-C and SIGTERM for requests to stop, and say so; a second one does what it always does.

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
        with contextlib.suppress(OSError):  # of a pipe whose reader, such as tee, had the same Ctrl-C
            print(_NOTICE, file=sys.stderr, flush=True)  # noqa: T201

    for number in _SIGNALS:
        signal.signal(number, ask)
    try:
        yield asked.is_set
    finally:
        restore()
