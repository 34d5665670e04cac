"""Limits of size and time for requests of all routes, the access log, and the figures."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from envfleet.service.bodies import Body, BodyRoom
from envfleet.service.metrics import Metrics

_access = logging.getLogger("envfleet.access")
_METHODS = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"))
_SECRET = re.compile(r"(?<=/user/)[^/]+|ef_[\w-]+")
_SMALL_BYTES = 16 * 2**10
_JSON_BYTES = 2 * 2**20  # of 20,000 episodes
BATCHES = {f"/api/v1/episode/vectorized_{call}": _JSON_BYTES for call in ("reset", "step")}
"""Maximum size of a body by route, below the service's own limit; bodies of all other routes are small.

Resets and steps of the fleet protocol do not come through here: what the fleet's spaces need limits their bodies.
"""


class Gate:
    """ASGI middleware.

    Args:
        app: Application behind the gate.
        max_body_bytes: Maximum size of the body of any request.
        room: Memory that all bodies share.
        metrics: Metrics that count the requests.
        patience_s: Seconds to wait for the next piece of a body, and for the whole of a small one.
        whole_s: Seconds to wait for the whole of a batch, however steadily it comes.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_body_bytes: int,
        room: BodyRoom,
        metrics: Metrics,
        *,
        patience_s: float = 30.0,
        whole_s: float = 300.0,
    ) -> None:
        self._app, self._most, self._room, self._metrics = app, max_body_bytes, room, metrics
        self._patience_s, self._whole_s = patience_s, whole_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and record its result."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 500
        http_scope = scope
        if scope["method"] == "HEAD":  # answered like GET; the web server omits the body
            scope = {**scope, "method": "GET"}
        body = Body(scope, receive, self._room, patience_s=self._patience_s)

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def limit() -> Message:
            return await body.receive(*self._limits(scope))

        try:
            await self._app(scope, limit, watch)
        finally:
            body.release()
            note(self._metrics, http_scope, _route(scope), status, time.perf_counter() - begun)

    def _limits(self, scope: Scope) -> tuple[int, float]:
        """Return the bytes and the seconds that the body of a request may take; its route is known by now."""
        most = BATCHES.get(_route(scope))
        if most is None:
            return min(_SMALL_BYTES, self._most), self._patience_s
        return min(most, self._most), self._whole_s


def note(metrics: Metrics, scope: Scope, route: str, status: int, seconds: float) -> None:
    """Count a request that was answered, and write its line of the access log."""
    method = scope["method"] if scope["method"] in _METHODS else "other"  # a client may send any word
    metrics.count(method, route, str(status))
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


def _route(scope: Scope) -> str:
    return getattr(scope.get("route"), "path", "none")


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
