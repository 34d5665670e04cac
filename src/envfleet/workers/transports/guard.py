"""Guard of a worker on another machine: it reports for a busy worker, kills it on request, and outlives it.

The guard is a thread of the process that started the worker. A separate connection to the owner carries a beat every
second, so that the owner can distinguish a busy worker from one on a lost machine or network.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from enum import IntEnum

from envfleet.workers.board import Line
from envfleet.workers.transports.far import PROGRESS, Link
from envfleet.workers.transports.launch import WorkerProcess
from envfleet.workers.transports.socket import Connection

BEAT_S = 1.0
"""Interval of beats."""

CLOSED_S = 2.5
"""Time in which a connection that was closed has to be restored."""

_RETRY_S = 0.1


class Word(IntEnum):
    """First word of a frame between owner and guard."""

    BEAT = 0  # from the guard: the count of the last LOOK, and the progress of the worker
    ENDED = 1  # from the guard: whether the exit code is known, and the exit code
    LOOK = 2  # from the owner, with a count
    KILL = 3  # from the owner


class Guard(threading.Thread):
    """Guard of a worker.

    If the owner cannot be reached again within `CLOSED_S` after its connection was closed, the worker is killed.

    Args:
        control: Connection to the owner.
        link: Way to connect again.
        process: The worker.
        line: The worker's words of the board.
        lifeline: One end of a pair of sockets; the worker has the other one, and is killed when this one is closed.
    """

    def __init__(
        self, control: Connection, link: Link, process: WorkerProcess, line: Line, lifeline: socket.socket
    ) -> None:
        super().__init__(name="envfleet-guard", daemon=True)
        self._control, self._link, self._process, self._line, self._lifeline = control, link, process, line, lifeline
        self._has_reported, self._count = False, 0

    def run(self) -> None:
        """Serve the owner until it closes the connection for good."""
        while not self._control.is_over or self._connect_again():
            self._control.mention((Word.BEAT, self._count, *(self._line[word] for word in PROGRESS)))
            if not self._has_reported and self._process.has_ended():
                self._has_reported, code = True, self._process.exitcode
                self._control.send((Word.ENDED, code is not None, code or 0))
            self._wait()
            for (word, count, *_), _ in self._control.frames():
                if word == Word.KILL:
                    self._process.kill()
                self._count = count or self._count
        self._process.kill()
        self._lifeline.close()
        self._control.close()

    def _wait(self) -> None:
        """Wait for the owner, for the end of the worker, or until the next beat."""
        poll = select.poll()
        poll.register(self._control.fd, select.POLLIN)
        if not self._has_reported:
            poll.register(self._process.sentinel, select.POLLIN)
        poll.poll(BEAT_S * 1000)

    def _connect_again(self) -> bool:
        deadline_s = time.monotonic() + CLOSED_S
        while time.monotonic() < deadline_s:
            try:
                self._control.resume(*self._link.connect(self._control.num_read))
                return True
            except OSError:
                time.sleep(_RETRY_S)
        return False
