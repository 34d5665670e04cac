"""Connections of clients: how many there may be, and how long and how large the head of a request may be."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from typing import TYPE_CHECKING, Any, ClassVar

from uvicorn.protocols.http.auto import AutoHTTPProtocol

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as _Protocol
else:
    _Protocol = AutoHTTPProtocol  # httptools where it is installed, else h11

_MOST_HEAD_BYTES = 64 * 2**10
_MOST_BACKLOG = 2048
_QUIET_S = 60.0
_log = logging.getLogger("envfleet.service")


class PatientConnection(_Protocol):
    """An HTTP connection that is closed if a request's line and headers do not arrive in time, or are too large.

    uvicorn waits for them without limit once their first byte is there. The unread rest of a refused request's body
    has to arrive within the same time. A connection beyond `most` is closed at once, because a service that has run
    out of file descriptors can neither accept connections nor open its database.

    Attributes:
        head_s: Seconds for line and headers.
        most: Connections at a time.
    """

    head_s: ClassVar[float] = 20.0
    most: ClassVar[int] = 2**20

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes, self._is_in_head = 0, False
        self._start_timer()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Take the connection, or close it if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            _refused.warn("%d connections are open, the limit: others are closed at once", self.most)
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse data; stop the timer if a request is complete up to its body, start it if the next one begins."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before or self not in self.connections:  # a WebSocket has it now, and looks after it
            self._stop_timer()
        elif self._timer is None and before.response_complete:
            self._start_timer()
        if self._is_in_head:  # h11 has such a limit, httptools has none
            self._head_bytes += len(data)
            if self._head_bytes > _MOST_HEAD_BYTES:
                self.transport.abort()

    def on_message_begin(self) -> None:
        """Start to count the bytes of a head."""
        self._head_bytes, self._is_in_head = 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop counting."""
        self._is_in_head = False
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.head_s, self.timeout_keep_alive_handler)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Seldom(logging.Filter):
    """Lets a message pass once a minute: it is logged for each of thousands of connections."""

    def __init__(self, begins: str = "") -> None:
        super().__init__()
        self._begins, self._logged_at = begins, -_QUIET_S

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(self._begins) or self._is_due()

    def warn(self, message: str, *arguments: Any) -> None:
        if self._is_due():
            _log.warning(message, *arguments)

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now - self._logged_at < _QUIET_S:
            return False
        self._logged_at = now
        return True


_refused = _Seldom()
_not_accepted = _Seldom("socket.accept() out of system resource")


def divide_descriptors() -> int:
    """Allow this process all file descriptors that it may have, and connections half of them.

    The other half is for worker processes and the database.

    Returns:
        Length of the queue of connections that are not accepted yet.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        most = 2**20
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    PatientConnection.most = most // 2
    logger = logging.getLogger("asyncio")
    if _not_accepted not in logger.filters:
        logger.addFilter(_not_accepted)
    return max(16, min(_MOST_BACKLOG, most // 8))  # asyncio accepts as many before it closes any
