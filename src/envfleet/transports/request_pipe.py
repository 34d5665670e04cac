"""The owner's end of the pipe down which a worker process gets its requests."""

from __future__ import annotations

import collections
import os
import select
from pathlib import Path


class _Part:
    """A message, and how much of it is written: one number per write."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.written: list[int] = []

    @property
    def rest(self) -> memoryview:
        """What is still to be written."""
        return self._data[sum(self.written) :]


class RequestPipe:
    """Takes messages of any size at once. What the pipe has no room for waits here, and is written in order by `push`.

    An exception at any moment, as Ctrl-C is one, loses none of a message and writes none of it twice.

    Args:
        fd: The end to write to, which must not block; owned from now on.

    Attributes:
        fd: The same; -1 once it is closed.
        vain_looks: How often in a row somebody found that the worker is stopped and reads nothing.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.vain_looks = 0
        self._waiting: collections.deque[_Part] = collections.deque()

    @property
    def is_blocked(self) -> bool:
        """Whether something waits for room."""
        return bool(self._waiting)

    def write(self, data: bytes) -> None:
        """Take a message, and write as much as there is room for; nothing if the worker is gone."""
        if not self._waiting and len(data) <= select.PIPE_BUF:  # which is written whole, or not at all
            try:
                os.write(self.fd, data)
            except BlockingIOError:
                pass
            except BrokenPipeError:
                return
            else:
                return
        self._waiting.append(_Part(data))
        self.push()

    def push(self) -> None:
        """Write what waits, as far as there is room; forget it if the worker is gone."""
        while self._waiting:
            part = self._waiting[0]
            try:
                # One call writes and notes it: Python raises Ctrl-C between any two, and what only was written would be
                # written again.
                part.written.extend(map(os.write, (self.fd,), (part.rest,)))
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._waiting.clear()
                return
            self.vain_looks = 0
            if not part.rest:
                self._waiting.popleft()

    def close(self) -> None:
        """End the pipe, and forget what waits; idempotent."""
        self._waiting.clear()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by SIGSTOP, job control or a debugger; False where there is no `/proc` to tell."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in ("T", "t")
