"""What every request passes: the limit of its size, the access log, and the figures."""

from __future__ import annotations

import asyncio
import contextlib
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
_SECRET = re.compile(r"(?<=/user/)[^/]+|ef_[\w-]+")


class Gate:
    """ASGI middleware.

    Args:
        app: What is behind it.
        max_body_bytes: Of a request.
        metrics: To count in.
        patience_s: How long to wait for the next piece of a body.
        whole_s: How long to wait for all of it, however steadily it comes.
    """

    def __init__(
        self, app: ASGIApp, max_body_bytes: int, metrics: Metrics, *, patience_s: float = 30.0, whole_s: float = 300.0
    ) -> None:
        self._app, self._most, self._metrics = app, max_body_bytes, metrics
        self._patience_s, self._whole_s = patience_s, whole_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and note what came of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status, has_begun = time.perf_counter(), 500, False
        received, is_whole = 0, False
        refusal = self._too_large() if _declared_bytes(scope) > self._most else None

        async def count(message: Message) -> None:
            nonlocal status, has_begun
            if refusal is not None and not has_begun:
                return  # whatever is made of half a body
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
            await send(message)

        async def limit() -> Message:
            nonlocal received, is_whole, refusal
            try:
                left_s = self._whole_s - (time.perf_counter() - begun)
                async with asyncio.timeout(None if is_whole else min(self._patience_s, left_s)):
                    message = await receive()
            except TimeoutError:
                refusal = self._too_slow(left_s)
                raise _BodyRefused from None
            received, is_whole = received + len(message.get("body", b"")), not message.get("more_body", False)
            if received > self._most:
                refusal = self._too_large()
                raise _BodyRefused
            return message

        try:
            if refusal is None:
                with contextlib.suppress(_BodyRefused):
                    await self._app(scope, limit, count)
            if refusal is not None and not has_begun:
                (refused_status, code, detail), refusal = refusal, None  # this answer passes
                await JSONResponse({"code": code, "detail": detail}, refused_status)(scope, receive, count)
        finally:
            self._note(scope, status, time.perf_counter() - begun)

    def _too_slow(self, left_s: float) -> tuple[int, str, str]:
        missed = f"nothing came of the body for {self._patience_s:g} s: send it again"
        if left_s < self._patience_s:
            missed = f"the body was not whole after {self._whole_s:g} s: send less at a time"
        return 408, "too_slow", missed

    def _too_large(self) -> tuple[int, str, str]:
        return 413, "too_large", f"the body has more than {self._most} bytes: send less at a time"

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


class _BodyRefused(Exception):
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

    >>> redact("/api/v1/user/secret/score"), redact("/api/v1/users/ef_secret")
    ('/api/v1/user/***/score', '/api/v1/users/***')
    """
    return _SECRET.sub("***", path)
