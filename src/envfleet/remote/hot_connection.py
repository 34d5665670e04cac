"""A connection for resets and steps: one request at a time over one socket, without what a general client adds to each.

`httpx` takes longer for a request than a service takes for a step of many sub-environments. It still makes all other
calls, and also these where a proxy, TLS or user information in the address is involved.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import threading
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

import httptools
import httpx

_PATH = re.compile(r"[\w/-]+")
_CHUNK_BYTES = 256 * 2**10


class Answer(NamedTuple):
    """Answer to a request, as far as `httpx.Response` has the same attributes.

    Attributes:
        status_code: HTTP status.
        headers: Headers by name in lower case.
        content: Body.
    """

    status_code: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def text(self) -> str:
        """Body as text."""
        return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        """Decode the body."""
        return json.loads(self.content)


class HotConnection:
    """Keep-alive connection to one service; `post` raises the errors of `httpx`.

    Args:
        url: URL of the service, with the prefix of all paths.
        headers: Headers of every request.
    """

    def __init__(self, url: httpx.URL, headers: Mapping[str, str]) -> None:
        self._address = url.host, url.port or 80
        self._prefix = url.raw_path.rstrip(b"/")
        lines = [b"Host: " + url.netloc, *(f"{name}: {value}".encode("latin-1") for name, value in headers.items())]
        self._lines = b"\r\n".join(lines)
        self._socket: socket.socket | None = None
        self._poll: Any = None
        self._turn = threading.Lock()

    @staticmethod
    def is_possible(url: httpx.URL) -> bool:
        """Return whether the service can be reached without TLS, a proxy and user information in the address."""
        if url.scheme != "http" or url.userinfo or not hasattr(select, "poll"):
            return False
        proxies = urllib.request.getproxies()
        return not (proxies.keys() & {"http", "all"}) or bool(urllib.request.proxy_bypass(url.host))

    def post(self, path: str, body: bytes, *, timeout_s: float, connect_s: float) -> Answer | None:
        """Send a request and return its answer; `None` if another thread uses the connection or the path is unusual.

        Args:
            path: Path below the prefix.
            body: Body of the request.
            timeout_s: Maximum pause of the service.
            connect_s: Timeout of connecting.

        Raises:
            httpx.RequestError: The service does not answer.
        """
        if not _PATH.fullmatch(path) or not self._turn.acquire(blocking=False):
            return None
        try:
            connection = self._connect(connect_s)
            if connection.gettimeout() != timeout_s:  # setting it is a system call
                connection.settimeout(timeout_s)
            try:
                head = b"POST %b%b HTTP/1.1\r\n%b\r\nContent-Length: %d\r\n\r\n"
                connection.sendall(head % (self._prefix, path.encode(), self._lines, len(body)) + body)
                parser = _Response()
                while not parser.is_whole:
                    parser.feed(connection.recv(_CHUNK_BYTES))
            except TimeoutError as error:
                raise httpx.ReadTimeout(str(error)) from error
            except OSError as error:
                raise httpx.ReadError(str(error)) from error
            if not parser.keeps_alive:
                self._drop()
            return parser.answer()
        except BaseException:  # what comes next over this connection would answer the request that failed
            self._drop()
            raise
        finally:
            self._turn.release()

    def _connect(self, timeout_s: float) -> socket.socket:
        """Return the connection, a new one if the service has closed it meanwhile."""
        if self._socket is not None and not self._poll.poll(0):
            return self._socket
        self._drop()
        try:
            self._socket = socket.create_connection(self._address, timeout_s)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        return self._socket

    def _drop(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Drop the connection; a request that is under way in another thread fails."""
        connection = self._socket
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if self._turn.acquire(blocking=False):
            self._drop()
            self._turn.release()


class _Response:
    """Parser of one response; the names of methods are those that httptools calls."""

    def __init__(self) -> None:
        self.is_whole = self.keeps_alive = False
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Take what arrived.

        Raises:
            httpx.RemoteProtocolError: It is not HTTP, or the connection was closed.
        """
        if not data:
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise httpx.RemoteProtocolError(str(error)) from error

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        self.is_whole, self.keeps_alive = True, self._parser.should_keep_alive()

    def answer(self) -> Answer:
        """Return the whole response."""
        content = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        return Answer(self._parser.get_status_code(), self._headers, content)
