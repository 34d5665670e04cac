"""Limits of time and size for every connection and request, the access log, and the figures."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import time
from typing import Any, ClassVar

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from envfleet.service.metrics import Metrics

_access = logging.getLogger("envfleet.access")
_METHODS = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"))
_SECRET = re.compile(r"(?<=/user/)[^/]+|ef_[\w-]+")
_SMALL_BYTES = 16 * 2**10
_JSON_BYTES = 2 * 2**20  # of 20,000 episodes
BATCHES = {
    **{f"/api/v2/fleets/{{fleet}}/{call}": sys.maxsize for call in ("reset", "step")},
    **{f"/api/v1/episode/vectorized_{call}": _JSON_BYTES for call in ("reset", "step")},
}
"""Maximum size of a body by route, below the service's own limit; bodies of all other routes are small."""


class PatientConnection(H11Protocol):
    """An HTTP connection that is closed if a request's line and headers do not arrive in time.

    uvicorn waits for them without limit once their first byte is there. The unread rest of a refused request's body
    has to arrive within the same time.

    Attributes:
        head_s: Seconds for line and headers.
    """

    head_s: ClassVar[float] = 20.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._timer: asyncio.TimerHandle | None = None
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Parse data; stop the timer if a request is complete up to its body, start it if the next one begins."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop_timer()
        elif self._timer is None and before.response_complete:
            self._start_timer()

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


class Gate:
    """ASGI middleware.

    Args:
        app: What is behind it.
        max_body_bytes: Of any request; `BATCHES` lists the routes that may use all of it.
        metrics: To count in.
        patience_s: Seconds to wait for the next piece of a body, and for the whole of a small one.
        whole_s: Seconds to wait for the whole of a batch, however steadily it comes.
    """

    def __init__(
        self, app: ASGIApp, max_body_bytes: int, metrics: Metrics, *, patience_s: float = 30.0, whole_s: float = 300.0
    ) -> None:
        self._app, self._most, self._metrics = app, max_body_bytes, metrics
        self._patience_s, self._whole_s = patience_s, whole_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and record its result."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status, received, is_whole = time.perf_counter(), 500, 0, False

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def limit() -> Message:
            nonlocal received, is_whole
            most, whole_s = self._limits(scope)
            _check_size(_declared_bytes(scope), most)  # nothing is read of a body that is too large
            try:
                left_s = begun + whole_s - time.perf_counter()
                async with asyncio.timeout(None if is_whole else min(self._patience_s, left_s)):
                    message = await receive()
            except TimeoutError:
                missed = f"the body paused for {self._patience_s:g} s or was not whole after {whole_s:g} s"
                raise HTTPException(408, f"{missed}: send it again, or less at a time") from None
            received, is_whole = received + len(message.get("body", b"")), not message.get("more_body", False)
            _check_size(received, most)
            return message

        try:
            await self._app(scope, limit, watch)
        finally:
            self._note(scope, status, time.perf_counter() - begun)

    def _limits(self, scope: Scope) -> tuple[int, float]:
        """Return the bytes and the seconds that the body of a request may take; its route is known by now."""
        most = BATCHES.get(_route(scope))
        if most is None:
            return min(_SMALL_BYTES, self._most), self._patience_s
        return min(most, self._most), self._whole_s

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"  # a client may send any word
        self._metrics.requests.labels(method, _route(scope), str(status)).inc()
        if not _access.isEnabledFor(logging.INFO):
            return
        client: Any = scope.get("client") or ("",)
        line = {
            "time": round(time.time(), 3),
            "method": scope["method"],
            "path": redact(scope["path"]),
            "status": status,
            "ms": round(seconds * 1e3, 2),
            "client": client[0],
        }
        _access.info("%s", json.dumps(line))


def _check_size(size_bytes: int, most: int) -> None:
    if size_bytes > most:
        raise HTTPException(413, f"the body has more than {most:,} bytes, the limit of this call: send less at a time")


def _route(scope: Scope) -> str:
    return getattr(scope.get("route"), "path", "none")


def _declared_bytes(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


def write_access_log() -> None:
    """Write a line of JSON per request to standard output."""
    if not _access.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        _access.addHandler(handler)
    _access.propagate = False
    _access.setLevel(logging.INFO)


def redact(path: str) -> str:
    """Return a path without tokens.

    >>> redact("/api/v1/user/secret/score"), redact("/api/v1/users/ef_secret")
    ('/api/v1/user/***/score', '/api/v1/users/***')
    """
    return _SECRET.sub("***", path)
