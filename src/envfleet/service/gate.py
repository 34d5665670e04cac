"""What every request passes: the limit of its size, the access log, and the figures."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from envfleet.service.metrics import Metrics

_access = logging.getLogger("envfleet.access")
_METHODS = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"))
_SECRET = re.compile(r"(?<=/user/)[^/]+")


class Gate:
    """ASGI middleware.

    Args:
        app: What is behind it.
        max_body_bytes: Of a request.
        metrics: To count in.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int, metrics: Metrics) -> None:
        self._app, self._most, self._metrics = app, max_body_bytes, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and note what came of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status, has_begun = time.perf_counter(), 500, False
        received = 0

        async def count(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
            await send(message)

        async def limit() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._most:
                raise _BodyTooLarge
            return message

        try:
            if _declared_bytes(scope) > self._most:
                raise _BodyTooLarge
            await self._app(scope, limit, count)
        except _BodyTooLarge:
            if not has_begun:
                detail = f"the body has more than {self._most} bytes: send less at a time"
                await JSONResponse({"code": "too_large", "detail": detail}, 413)(scope, receive, count)
        finally:
            self._note(scope, status, time.perf_counter() - begun)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"  # a client may send any word
        self._metrics.requests.labels(method, route, str(status)).inc()
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


class _BodyTooLarge(Exception):
    """The rest of a body is not read."""


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
    """A path without tokens.

    >>> redact("/api/v1/user/ef_secret/score")
    '/api/v1/user/***/score'
    """
    return _SECRET.sub("***", path)
