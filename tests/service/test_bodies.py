"""Request bodies and connections: size limits, token checks before the first byte, and timeouts."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from starlette.exceptions import HTTPException
from tests.service.conftest import Caller
from tests.service.serving import make_settings, serve_here
from tests.waiting import PATIENCE_S

from envfleet.service.bodies import Body, BodyRoom
from envfleet.service.connections import PatientConnection
from envfleet.service.gate import BATCHES, Gate
from envfleet.service.metrics import Metrics
from envfleet.service.refusals import Busy
from envfleet.service.service import Service
from envfleet.service.web import account, administration

HEAD_S, BODY_S = 0.6, 6.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Service]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PatientConnection, "head_s", HEAD_S)
        patch.setitem(Gate.__init__.__kwdefaults__ or {}, "patience_s", BODY_S)
        with serve_here(make_settings(tmp_path_factory.mktemp("bodies"))) as both:
            yield both


@pytest.fixture
def posts(http: httpx.Client) -> list[str]:
    """Paths of all routes that may have a body."""
    described = http.get("/openapi.json").json()["paths"]
    pages = [route for router in (account.router, administration.router) for route in router.routes]
    paths = [path for path, calls in described.items() if set(calls) - {"get"}]
    paths += [route.path for route in pages if "POST" in route.methods]  # type: ignore[attr-defined]  # of all pages
    assert len(paths) > 15
    assert set(BATCHES) < set(paths)
    return paths


def connect(http: httpx.Client) -> socket.socket:
    return socket.create_connection((str(http.base_url.host), http.base_url.port or 0), timeout=PATIENCE_S)


def announce(http: httpx.Client, path: str, size_bytes: int, headers: str = "") -> tuple[int, str]:
    """Send a request without its body; returns the status of the answer, and its text."""
    path = re.sub(r"{\w+}", "999999", path)
    kind = "application/json" if path.startswith("/api") else "application/x-www-form-urlencoded"
    with connect(http) as connection:
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: {kind}\r\nConnection: close\r\n"
            f"Content-Length: {size_bytes}\r\n{headers}\r\n".encode()
        )
        answer = b""
        while data := connection.recv(2**16):
            answer += data
    return int(answer.split()[1]), answer.decode()


def test_no_body_is_read_before_its_token_is_checked(http: httpx.Client, posts: list[str]) -> None:
    for path in posts:
        expected = 401 if path.startswith("/api") else 413 if path == "/sign-in" else 303
        for headers in ("", "User-Token: wrong\r\nAuthorization: Bearer wrong\r\nCookie: envfleet_session=wrong\r\n"):
            assert announce(http, path, 40_000_000, headers)[0] == expected, path


def test_bodies_are_small_except_for_batches(http: httpx.Client, posts: list[str], admin: Caller) -> None:
    session = httpx.post(f"{http.base_url}/sign-in", data={"token": admin.token}).cookies["envfleet_session"]
    headers = (
        f"User-Token: {admin.token}\r\nAuthorization: Bearer {admin.token}\r\nCookie: envfleet_session={session}\r\n"
    )
    unread = r"/api/v2/fleets/{fleet}/.*|(/api/v2)?/admin/tokens/{token_id}/.*|/api/v1/session/create|/sign-out"
    for path in posts:
        if re.fullmatch(unread, path):
            continue
        most = 2_097_152 if path in BATCHES else 16_384
        status, text = announce(http, path, most + 1, headers)
        assert (status, f"more than {most:,} bytes, the limit of this call: send less" in text) == (413, True), path


def test_a_body_larger_than_announced_is_refused(http: httpx.Client) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    response = http.post("/sign-in", content=(bytes(1000) for _ in range(50)), headers=form)
    assert (response.status_code, response.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize(
    ("pause_s", "route", "patience", "message"),
    [
        (60.0, "/sign-in", {"patience_s": 0.05}, "paused for 0.05 s"),
        (60.0, next(iter(BATCHES)), {"patience_s": 0.05}, "paused for 0.05 s"),
        (0.01, "/sign-in", {"patience_s": 0.2}, "was not whole after 0.2 s"),
        (0.01, next(iter(BATCHES)), {"whole_s": 0.2}, "was not whole after 0.2 s"),
    ],
)
def test_bodies_that_do_not_come_or_trickle_are_given_up(
    pause_s: float, route: str, patience: dict[str, float], message: str
) -> None:
    async def app(_: Any, receive: Any, __: Any) -> None:
        while True:
            await receive()

    async def trickle() -> Any:
        await asyncio.sleep(pause_s)
        return {"type": "http.request", "body": b"x", "more_body": True}

    gate = Gate(app, 2**60, BodyRoom(2**60, 2**60), Metrics(), **patience)
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "route": SimpleNamespace(path=route)}
    with pytest.raises(HTTPException, match=message) as refused:
        asyncio.run(asyncio.wait_for(gate(scope, trickle, AsyncMock()), PATIENCE_S))
    assert refused.value.status_code == 408


def drip(connection: socket.socket, pieces: Iterator[bytes]) -> float:
    """Send a piece every 50 ms until the other side closes; returns the seconds that took."""
    begun = time.monotonic()
    connection.settimeout(0.05)
    while time.monotonic() - begun < PATIENCE_S:
        try:
            connection.sendall(next(pieces))
            if not connection.recv(2**16):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    else:
        pytest.fail("the service did not close the connection")
    return time.monotonic() - begun


def endless(head: bytes, unit: bytes) -> Iterator[bytes]:
    yield head
    while True:
        yield unit


@pytest.mark.parametrize(
    "pieces",
    [
        (b"", b""),
        (b"GET /healthz HTTP/1.1\r\nHost: here\r\n", b"X: y\r\n"),
        (b"G", b""),
        (
            b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\nGET /",
            b"X",
        ),  # a second request, of which the first line never ends
        (b"POST /api/v1/episode/step HTTP/1.1\r\nHost: here\r\nContent-Length: 99999\r\n\r\n", b"x"),  # and its refusal
    ],
)
def test_connections_whose_requests_do_not_come_are_closed(http: httpx.Client, pieces: tuple[bytes, bytes]) -> None:
    with connect(http) as connection:
        assert drip(connection, endless(*pieces)) > 0.9 * HEAD_S


def begin(connection: HTTPConnection, path: str, body: bytes, **headers: str) -> None:
    """Send a request with the beginning of its body."""
    connection.putrequest("POST", path)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(body)


def test_half_a_form_is_answered(http: httpx.Client) -> None:
    connection = HTTPConnection(http.base_url.host, http.base_url.port, timeout=PATIENCE_S)
    begin(connection, "/sign-in", b"token=", Content_Type="application/x-www-form-urlencoded", Content_Length="40")
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["code"]) == (408, "too_slow")
    connection.close()


def test_connections_that_wait_or_send_a_body_are_kept(http: httpx.Client, ann: Caller) -> None:
    connection = HTTPConnection(http.base_url.host, http.base_url.port, timeout=PATIENCE_S)
    for _ in range(2):
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b'{"status":"ok"}'
        time.sleep(2 * HEAD_S)
    kind = {"Content_Type": "application/json", "Content_Length": "2"}
    begin(connection, "/api/v1/episode/create", b"{", User_Token=ann.token, **kind)
    time.sleep(2 * HEAD_S)
    connection.send(b"}")
    assert connection.getresponse().status == 200
    connection.close()


def test_unread_bodies_are_bounded_in_total_and_by_token() -> None:
    """Bodies that are sent in halves hold memory, for as long as their clients like."""
    room, size = BodyRoom(total_bytes=5 * 2**20, own_bytes=3 * 2**20), 2**20 + 2**16

    async def send_half(token: bytes) -> Body:
        message = {"type": "http.request", "body": bytes(size), "more_body": True}
        scope = {"type": "http", "headers": [(b"authorization", token)]}
        body = Body(scope, AsyncMock(return_value=message), room, patience_s=PATIENCE_S)
        await body.receive(2**30, PATIENCE_S)
        return body

    async def main() -> None:
        own = [await send_half(b"ann") for _ in range(3)]
        with pytest.raises(Busy, match="with this token"):
            await send_half(b"ann")
        others = [await send_half(b"bob") for _ in range(2)]
        with pytest.raises(Busy, match="by all users"):
            await send_half(b"cleo")
        for body in (*own, *others):
            body.release()
        await send_half(b"ann")

    asyncio.run(main())
