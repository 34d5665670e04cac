"""Connections: peers without the key are refused, and frames survive any fragmentation."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.waiting import PATIENCE_S

from envfleet.workers.board import Poller
from envfleet.workers.transports import socket as transport
from envfleet.workers.transports.socket import (
    GREETING,
    HEAD,
    PROOF_BYTES,
    WELCOME,
    Connection,
    Greeting,
    Listener,
    introduce,
)

KEY = secrets.token_bytes(32)


class Owner:
    """An owner that listens, and the workers it has let in."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = self.server.getsockname()
        self.poller = Poller()
        self.accepted: list[tuple[int, socket.socket]] = []
        self.listener = Listener(self.server, KEY, self.poller, self._welcome)

    def _welcome(self, greeting: Greeting, peer: socket.socket, proof: bytes) -> None:
        peer.send(WELCOME.pack(proof, 0))
        self.accepted.append((greeting.ticket, peer))

    def serve_until(self, is_there: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_there():
            assert time.monotonic() < deadline_s
            assert not self.poller.sleep(0.01)


@pytest.fixture
def owner() -> Iterator[Owner]:
    opened = Owner()
    yield opened
    opened.listener.close()
    for _, peer in opened.accepted:
        peer.close()


class Worker(threading.Thread):
    """Connects and introduces itself; keeps the outcome."""

    def __init__(self, address: Any, key: bytes = KEY, ticket: int = 7) -> None:
        super().__init__()
        self.peer = socket.create_connection(address)
        self._key, self._ticket = key, ticket
        self.outcome: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.outcome = introduce(self.peer, self._key, self._ticket)
        except OSError as error:
            self.outcome = error

    def close(self) -> None:
        self.join()
        self.peer.close()


def test_a_worker_with_the_key_is_accepted(owner: Owner) -> None:
    worker = Worker(owner.address)
    owner.serve_until(lambda: bool(owner.accepted))
    worker.close()
    assert worker.outcome == ([], 0)
    assert [ticket for ticket, _ in owner.accepted] == [7]


def test_a_worker_with_another_key_is_refused(owner: Owner) -> None:
    worker = Worker(owner.address, key=bytes(32))
    owner.serve_until(lambda: not worker.is_alive())
    worker.close()
    assert isinstance(worker.outcome, ConnectionRefusedError)
    assert owner.accepted == []


def test_worker_does_not_trust_an_owner_without_the_key() -> None:
    """An impostor at the owner's address could send pickles next."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        worker = Worker(server.getsockname())
        peer, _ = server.accept()
        with peer:
            peer.sendall(bytes(PROOF_BYTES))
            peer.recv(GREETING.size, socket.MSG_WAITALL)
            peer.sendall(bytes(WELCOME.size))
            worker.close()
    assert isinstance(worker.outcome, ConnectionRefusedError)
    assert "key" in str(worker.outcome)


def test_a_greeting_cannot_be_repeated(owner: Owner) -> None:
    """A recorded greeting cannot be replayed: the nonce differs."""
    worker = Worker(owner.address)
    heard = []
    hear = owner.listener._hear  # what the owner reads

    def spy(peer: socket.socket, nonce: bytes) -> bool:
        heard.append(peer.recv(GREETING.size, socket.MSG_PEEK))
        return hear(peer, nonce)

    owner.listener._hear = spy  # type: ignore[method-assign]
    owner.serve_until(lambda: bool(owner.accepted))
    worker.close()
    with socket.create_connection(owner.address) as thief:
        thief.sendall(heard[0])
        owner.serve_until(lambda: len(heard) == 2)
    assert len(owner.accepted) == 1


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(10_000)], ids=["nothing", "http", "noise"])
def test_strangers_hold_up_nobody(owner: Owner, said: bytes) -> None:
    with socket.create_connection(owner.address) as stranger:
        with contextlib.suppress(OSError):
            stranger.sendall(said)
        worker = Worker(owner.address)
        owner.serve_until(lambda: bool(owner.accepted))
        assert said or owner.listener._strangers  # which was not waited for until it was given up
        worker.close()
    assert [ticket for ticket, _ in owner.accepted] == [7]


def test_greeting_that_comes_in_two_parts(owner: Owner) -> None:
    with socket.create_connection(owner.address) as peer:
        nonce: list[bytes] = []
        owner.serve_until(lambda: len(owner.listener._strangers) == 1)
        nonce.append(peer.recv(PROOF_BYTES, socket.MSG_WAITALL))
        worker_nonce = secrets.token_bytes(PROOF_BYTES)
        greeting = GREETING.pack(worker_nonce, 3, 0, transport._prove(KEY, b"worker", nonce[0] + worker_nonce, 3))
        peer.sendall(greeting[:20])
        for _ in range(3):
            owner.poller.sleep(0.02)
        assert owner.accepted == []
        peer.sendall(greeting[20:])
        owner.serve_until(lambda: bool(owner.accepted))


def test_silent_peers_are_few(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_STRANGERS", 3)
    peers = [socket.create_connection(owner.address) for _ in range(6)]
    try:
        owner.serve_until(lambda: _is_closed(peers[2]))
        assert len(owner.listener._strangers) == 3
        worker = Worker(owner.address)
        owner.serve_until(lambda: bool(owner.accepted))
        worker.close()
    finally:
        for peer in peers:
            peer.close()


def _is_closed(peer: socket.socket) -> bool:
    peer.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while data := peer.recv(4096):
            assert data
        return True
    return False


def test_descriptors_come_with_the_proof_over_a_unix_socket() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    poller, read_write = Poller(), os.pipe()
    with ours, theirs:
        got: list[int] = []
        thread = threading.Thread(target=lambda: got.extend(introduce(theirs, KEY, 0)[0]))
        thread.start()
        nonce = secrets.token_bytes(PROOF_BYTES)
        ours.sendall(nonce)
        worker_nonce, ticket, _, _ = GREETING.unpack(ours.recv(GREETING.size, socket.MSG_WAITALL))
        welcome = WELCOME.pack(transport._prove(KEY, b"owner", nonce + worker_nonce, ticket), 0)
        socket.send_fds(ours, [welcome], [read_write[1]])
        thread.join(PATIENCE_S)
        os.write(got[0], b"hello")
        assert os.read(read_write[0], 10) == b"hello"
        for fd in (*got, *read_write):
            os.close(fd)
    assert not poller.sleep(0)


# ------------------------------------------------------------------------------------------------------------ frames


@pytest.fixture
def pair() -> Iterator[tuple[Connection, Connection]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    connections = Connection(one), Connection(other)
    yield connections
    for connection in connections:
        connection.close()


def receive(connection: Connection, count: int) -> list[tuple[list[int], bytes]]:
    frames: list[tuple[list[int], bytes]] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while len(frames) < count and time.monotonic() < deadline_s:
        frames += [(words, bytes(data)) for words, data in connection.frames()]
    return frames


def test_frames_there_and_back(pair: tuple[Connection, Connection]) -> None:
    one, other = pair
    array = np.arange(5, dtype=np.float32)
    one.send([1, -2], [array, b"end"])
    one.send([3])
    (words, data), (second, nothing) = receive(other, 2)
    assert words == [1, -2, *[0] * (transport.NUM_WORDS - 2)]
    assert data == array.tobytes() + b"end"
    assert (second[0], nothing) == (3, b"")
    other.send([4])
    assert receive(one, 1)[0][0][0] == 4


def test_frames_that_arrive_byte_by_byte(pair: tuple[Connection, Connection]) -> None:
    one, other = pair
    frames = []
    words = list(range(transport.NUM_WORDS))
    for byte in b"".join(HEAD.pack(5, number, 0, *words) + b"hello" for number in (1, 2)):
        one._peer.send(bytes([byte]))
        time.sleep(0.0002)
        frames += [(heard, bytes(data)) for heard, data in other.frames()]
    frames += receive(other, 2 - len(frames))
    assert frames == [(words, b"hello")] * 2


def test_a_torn_frame_is_never_seen(pair: tuple[Connection, Connection]) -> None:
    one, other = pair
    one.send([1], [b"whole"])
    one._peer.send(HEAD.pack(100, 2, 0, *range(transport.NUM_WORDS)) + b"half")
    one.close()
    assert [data for _, data in receive(other, 1)] == [b"whole"]
    deadline_s = time.monotonic() + PATIENCE_S
    while not other.is_over and time.monotonic() < deadline_s:
        assert list(other.frames()) == []
    assert other.is_over


def test_large_frames_both_ways_at_once(pair: tuple[Connection, Connection]) -> None:
    """Neither side reads before it has sent everything: a side that waits for room reads meanwhile."""
    size = 1 << 25
    frames: dict[int, list[tuple[list[int], bytes]]] = {}

    def exchange(one: Connection, mark: int) -> None:
        one.send([mark], [bytes([mark]) * size])
        frames[mark] = receive(one, 1)

    threads = [threading.Thread(target=exchange, args=each) for each in zip(pair, b"ab", strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for mark, theirs in (b"ab", b"ba"):
        ((words, data),) = frames[mark]
        assert (words[0], len(data), data[0], data[-1]) == (theirs, size, theirs, theirs)


def test_a_wait_for_room_can_be_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_ROOM_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = Connection(socket.create_connection(server.getsockname()), lambda: True)
        other, _ = server.accept()
    with other:
        one.send([0], [bytes(1 << 26)])  # without a reader
        assert one.is_over
        one.close()


def test_what_is_sent_to_nobody_is_no_error(pair: tuple[Connection, Connection]) -> None:
    one, other = pair
    other.close()
    for _ in range(10):
        one.send([1], [b"x"])
        time.sleep(0.01)
    assert one.is_over
    assert list(one.frames()) == []


def reconnected(one: Connection, other: Connection) -> None:
    """Continue both ends on another pair of sockets, as `introduce` and the listener do."""
    numbers = one.num_read, other.num_read
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname())
        one.resume(peer, numbers[1])
        other.resume(server.accept()[0], numbers[0])


def test_each_frame_is_read_once_however_connections_end(pair: tuple[Connection, Connection]) -> None:
    """Some are lost on the way, some are read but not confirmed, and one is torn."""
    one, other = pair
    seen: list[tuple[int, bytes]] = []

    def read() -> None:
        seen.extend((words[0], bytes(data)) for words, data in other.frames())

    for index in range(40):
        one.send([index], [bytes([index]) * 1000])
        if index % 3 == 0:
            read()
        if index % 7 == 3:
            other.send([index])
        if index % 5 == 4:
            (one if index % 2 else other).end()
            reconnected(one, other)
    one._peer.send(HEAD.pack(100, 99, 0, *range(transport.NUM_WORDS)) + b"half")
    one.end()
    reconnected(one, other)
    deadline_s = time.monotonic() + PATIENCE_S
    while len(seen) < 40 and time.monotonic() < deadline_s:
        read()
    assert seen == [(index, bytes([index]) * 1000) for index in range(40)]
    other.send([0])
    receive(one, 1)
    assert not one._unconfirmed


def test_a_frame_whose_reader_is_interrupted_is_read_again(pair: tuple[Connection, Connection]) -> None:
    one, other = pair
    for index in range(3):
        one.send([index], [b"data"])
    seen: list[int] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while len(seen) < 4 and time.monotonic() < deadline_s:
        with contextlib.suppress(KeyboardInterrupt):
            for words, data in other.frames():
                assert bytes(data) == b"data"
                seen.append(words[0])
                if seen == [0, 1]:
                    raise KeyboardInterrupt
    assert seen == [0, 1, 1, 2]


class Interrupting:
    """Socket of a process that gets Ctrl-C just after bytes were read."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer

    def recv_into(self, buffer: memoryview) -> int:
        if self._peer.recv_into(buffer):
            raise KeyboardInterrupt
        return 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peer, name)


def test_bytes_that_an_interruption_loses_are_sent_again(pair: tuple[Connection, Connection]) -> None:
    one, other = pair
    peer = other._peer
    other._peer = Interrupting(peer)  # type: ignore[assignment]
    one.send([1], [b"first"])
    with pytest.raises(KeyboardInterrupt):
        receive(other, 1)
    other._peer = peer
    one.send([2], [b"second"])
    assert other.is_over
    reconnected(one, other)
    assert [(words[0], data) for words, data in receive(other, 2)] == [(1, b"first"), (2, b"second")]


def test_what_is_mentioned_is_not_repeated(pair: tuple[Connection, Connection]) -> None:
    one, other = pair
    one.mention([1])
    assert receive(other, 1)[0][0][0] == 1
    one.end()
    one.mention([2])
    reconnected(one, other)
    one.send([3])
    assert [words[0] for words, _ in receive(other, 1)] == [3]


def test_the_error_that_ended_a_connection_is_kept(pair: tuple[Connection, Connection]) -> None:
    one, other = pair
    other._peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close by RST
    other.close()
    deadline_s = time.monotonic() + PATIENCE_S
    while not one.is_over and time.monotonic() < deadline_s:
        assert list(one.frames()) == []
    assert "reset" in one.cause
