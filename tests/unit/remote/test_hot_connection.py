"""The connection for resets and steps: what it sends and reads, and everything that can go wrong with a socket."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
from tests.waiting import PATIENCE_S, wait_until

from envfleet.errors import ServiceRefused
from envfleet.remote.codec import pack
from envfleet.remote.hot_connection import Answer, HotConnection
from envfleet.remote.service_link import ServiceLink

TYPE = b"Content-Type: application/msgpack\r\n"
Talk = Callable[[socket.socket], None]


def read_request(connection: socket.socket) -> tuple[bytes, bytes]:
    """Return head and body of the next request; empty if the client has closed the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65_536)
        if not piece:
            return b"", b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    while len(body) < size:
        body += connection.recv(65_536)
    return head, body


def say(body: bytes, status: bytes = b"200 OK", more: bytes = TYPE) -> Talk:
    def talk(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, more, len(body), body))

    return talk


@contextlib.contextmanager
def serve(*talks: Talk | None) -> Iterator[tuple[str, list[tuple[bytes, bytes]]]]:
    """A server that answers one request after the other; `None` closes the connection, and so does the end."""
    requests: list[tuple[bytes, bytes]] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)

        def work() -> None:
            left = list(talks)
            while left:
                connection, _ = listener.accept()
                with connection:
                    while left and (request := read_request(connection))[0]:
                        requests.append(request)
                        talk = left.pop(0)
                        if talk is None:
                            break
                        talk(connection)
                        if left[:1] == [None]:
                            left.pop(0)
                            break

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
        finally:
            thread.join(PATIENCE_S)


@contextlib.contextmanager
def connect(url: str) -> Iterator[HotConnection]:
    with contextlib.closing(HotConnection(httpx.URL(f"{url}/api/v2"), {"Authorization": "Bearer t"})) as hot:
        yield hot


def post(hot: HotConnection, body: bytes = b"body", timeout_s: float = PATIENCE_S) -> Answer:
    answer = hot.post("/fleets/f/step", body, timeout_s=timeout_s, connect_s=PATIENCE_S)
    assert answer is not None
    return answer


def test_requests_are_sent_over_one_connection() -> None:
    large = bytes(1_000_000)
    with serve(say(b"one"), say(large)) as (url, requests), connect(url) as hot:
        assert post(hot) == Answer(200, {"content-type": "application/msgpack", "content-length": "3"}, b"one")
        assert post(hot, large).content == large
    head, body = requests[0]
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /api/v2/fleets/f/step HTTP/1.1"
    assert {b"Host: " + url.removeprefix("http://").encode(), b"Authorization: Bearer t"} < set(lines)
    assert (body, requests[1][1]) == (b"body", large)


def test_a_connection_that_the_service_closed_is_replaced() -> None:
    with serve(say(b"1"), None, say(b"2", more=b"Connection: close\r\n"), None, say(b"3")) as (url, requests):
        with connect(url) as hot:
            assert post(hot).content == b"1"
            wait_until(lambda: bool(hot._poll.poll(0)), "the end of the connection")
            assert [post(hot).content for _ in range(2)] == [b"2", b"3"]
        assert len(requests) == 3


@pytest.mark.parametrize(
    ("talk", "error"),
    [
        (None, httpx.RemoteProtocolError),
        (lambda connection: connection.sendall(b"SSH-2.0\r\n\r\n"), httpx.RemoteProtocolError),
        (lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"), httpx.ReadTimeout),
        (lambda connection: None, httpx.ReadTimeout),
    ],
)
def test_what_is_no_answer_is_an_error_and_ends_the_connection(talk: Talk | None, error: type[Exception]) -> None:
    with serve(talk, say(b"later")) as (url, _), connect(url) as hot:
        with pytest.raises(error):
            post(hot, timeout_s=0.3)
        assert post(hot).content == b"later"  # nothing of the first request


def test_an_address_without_a_listener() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        with connect(f"http://127.0.0.1:{probe.getsockname()[1]}") as hot, pytest.raises(httpx.ConnectError):
            post(hot)


def test_only_one_thread_at_a_time_and_only_plain_paths() -> None:
    answers: list[Answer | None] = []

    def interfere(connection: socket.socket) -> None:
        answers.append(hot.post("/other", b"", timeout_s=1.0, connect_s=1.0))
        say(b"done")(connection)

    with serve(interfere) as (url, _), connect(url) as hot:
        assert post(hot).content == b"done"
        assert hot.post("/a\r\nX: y", b"", timeout_s=1.0, connect_s=1.0) is None
    assert answers == [None]


@pytest.mark.parametrize(
    ("url", "environment", "expected"),
    [
        ("http://host:8001", {}, True),
        ("https://host", {}, False),
        ("http://ann:secret@host", {}, False),
        ("http://host", {"http_proxy": "http://proxy:3128"}, False),
        ("http://host", {"ALL_PROXY": "socks5://proxy"}, False),
        ("http://host", {"http_proxy": "http://proxy:3128", "no_proxy": "host"}, True),
        ("http://host", {"https_proxy": "http://proxy:3128"}, True),
    ],
)
def test_tls_proxies_and_user_information_are_for_httpx(
    monkeypatch: pytest.MonkeyPatch, url: str, environment: dict[str, str], expected: bool
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert HotConnection.is_possible(httpx.URL(url)) is expected


def test_calls_are_repeated_and_refused_as_over_httpx() -> None:
    busy = say(b'{"code": "busy", "detail": "later"}', b"503 Busy", b"Retry-After: 0\r\n")
    moved = say(b"", b"307 Moved", b"Location: https://elsewhere\r\n")
    with (
        serve(busy, None, None, say(pack({"seq": 1})), moved) as (url, requests),
        contextlib.closing(ServiceLink(url, "t", timeout_s=PATIENCE_S, patience_s=PATIENCE_S)) as link,
    ):
        assert link.post("/fleets/f/step", b"same") == {"seq": 1}
        assert [body for _, body in requests] == [b"same"] * 3
        assert link.retries == 2
        with pytest.raises(ServiceRefused, match="points to https://elsewhere: pass that address"):
            link.post("/fleets/f/step", b"same")
