"""Connections to workers that another process has started: authentication, and frames of fixed layout.

Data of a peer is interpreted only after both sides have proven that they have the fleet's key. From then on they trust
each other like processes of one cluster.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import os
import secrets
import select
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from envfleet.workers.board import Poller

PROOF_BYTES = 32
GREETING = struct.Struct(f"<{PROOF_BYTES}sq{PROOF_BYTES}s")
"""Layout of a worker's answer to the owner's nonce: its nonce, its ticket, and its proof."""

NUM_WORDS = 11
HEAD = struct.Struct(f"<{1 + NUM_WORDS}q")
"""Header of a frame: number of bytes that follow, and words."""

MAX_FDS = 16
MAX_STRANGERS = 64
"""Maximum number of connected peers without authentication; the oldest is disconnected first."""

_KEEP_ALIVE = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 3000}
_ROOM_S = 1.0
_NO_WORDS = (0,) * NUM_WORDS

Frame: TypeAlias = "tuple[list[int], memoryview]"
"""Words of a frame, and its bytes, which are valid until the next frame is read."""


# ---------------------------------------------------------------------------------------------------- authentication


def _prove(key: bytes, role: bytes, nonces: bytes, ticket: int) -> bytes:
    return hmac.digest(key, role + nonces + ticket.to_bytes(8, "little", signed=True), "sha256")


def introduce(peer: socket.socket, key: bytes, ticket: int) -> list[int]:
    """Prove to an owner that this process has the fleet's key, and check its proof.

    Args:
        peer: Blocking socket, connected to the owner's `Listener`.
        key: Key of the fleet.
        ticket: Ticket of this worker.

    Returns:
        Descriptors from the owner.

    Raises:
        ConnectionError: The owner closed the connection, or does not have the key.
    """
    theirs, mine = peer.recv(PROOF_BYTES, socket.MSG_WAITALL), secrets.token_bytes(PROOF_BYTES)
    peer.sendall(GREETING.pack(mine, ticket, _prove(key, b"worker", theirs + mine, ticket)))
    proof, fds, _, _ = socket.recv_fds(peer, PROOF_BYTES, MAX_FDS, socket.MSG_WAITALL)
    if hmac.compare_digest(proof, _prove(key, b"owner", theirs + mine, ticket)):
        return fds
    for fd in fds:
        os.close(fd)
    raise ConnectionRefusedError(
        "the owner does not have the fleet's key" if proof else "the owner closed the connection"
    )


class Listener:
    """Address at which workers connect. Unknown clients get no answer and block nothing.

    Args:
        server: Listening socket, which the listener closes.
        key: Key of the fleet.
        poller: Poller that reports new peers.
        welcome: Called with the ticket of an authenticated worker, the connection, and this side's proof to send.
    """

    def __init__(
        self, server: socket.socket, key: bytes, poller: Poller, welcome: Callable[[int, socket.socket, bytes], None]
    ) -> None:
        self._server, self._key, self._poller, self._welcome = server, key, poller, welcome
        self._strangers: list[socket.socket] = []
        server.setblocking(False)
        poller.watch(server.fileno(), self._accept)

    def _accept(self) -> bool:
        with contextlib.suppress(OSError):  # a peer that is gone already
            peer, _ = self._server.accept()
            peer.setblocking(False)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, GREETING.size)  # readable when it is whole
            nonce = secrets.token_bytes(PROOF_BYTES)
            self._strangers.append(peer)
            self._poller.watch(peer.fileno(), functools.partial(self._hear, peer, nonce))
            peer.send(nonce)
        for stranger in self._strangers[:-MAX_STRANGERS]:
            self._forget(stranger).close()
        return False

    def _hear(self, peer: socket.socket, nonce: bytes) -> bool:
        self._forget(peer)
        try:
            theirs, ticket, proof = GREETING.unpack(peer.recv(GREETING.size))
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        except (OSError, struct.error):
            proof = b""
        if proof and hmac.compare_digest(proof, _prove(self._key, b"worker", nonce + theirs, ticket)):
            self._welcome(ticket, peer, _prove(self._key, b"owner", nonce + theirs, ticket))
        else:
            peer.close()
        return False

    def _forget(self, peer: socket.socket) -> socket.socket:
        self._poller.forget(peer.fileno())
        self._strangers.remove(peer)
        return peer

    def close(self) -> None:
        """Reject all further connections."""
        for stranger in list(self._strangers):
            self._forget(stranger).close()
        self._poller.forget(self._server.fileno())
        self._server.close()


def enable_keepalive(peer: socket.socket) -> None:
    """Enable keepalive, so that the kernel ends an idle connection soon after the other machine has died.

    While data is being sent, the kernel could not distinguish a dead peer from one that does not read.
    """
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):  # not every system has all of them
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# ------------------------------------------------------------------------------------------------------------ frames


class Connection:
    """Frames over a connected socket. Reading never blocks; sending reads while it waits.

    A broken connection is not an exception but the state `is_over`.

    Args:
        peer: Socket, which the connection closes.
        gives_up: Called repeatedly while sending waits; True ends the wait.

    Attributes:
        fd: Descriptor of the socket.
        is_over: True if the connection has ended.
    """

    def __init__(self, peer: socket.socket, gives_up: Callable[[], bool] = lambda: False) -> None:
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peer, self._gives_up, self.fd, self.is_over = peer, gives_up, peer.fileno(), False
        self._data, self._end = bytearray(1 << 16), 0

    def send(self, words: Sequence[int], parts: Iterable[Any] = ()) -> None:
        """Send a frame; `parts` are contiguous buffers."""
        body = b"".join(parts)
        data = memoryview(HEAD.pack(len(body), *words, *_NO_WORDS[len(words) :]) + body)
        try:
            while data and not self.is_over:
                try:
                    data = data[self._peer.send(data) :]
                except BlockingIOError:
                    self._await_room()
        except OSError:
            self.end()

    def _await_room(self) -> None:
        poll = select.poll()
        poll.register(self.fd, select.POLLIN | select.POLLOUT)
        ready = poll.poll(_ROOM_S * 1000)
        if not ready and self._gives_up():
            self.end()
        elif ready and ready[0][1] != select.POLLOUT:
            self._read()

    def frames(self) -> Iterator[Frame]:
        """Read the available data and yield the complete frames."""
        self._read()
        start = 0
        while self._end - start >= HEAD.size:
            size, *words = HEAD.unpack_from(self._data, start)
            body = start + HEAD.size
            if body + size > self._end:
                break
            start = body + size
            yield words, memoryview(self._data)[body:start]
        if start:
            self._end -= start
            self._data[: self._end] = self._data[start : start + self._end]

    def _read(self) -> None:
        while not self.is_over:
            if self._end == len(self._data):
                self._data = self._data + bytes(len(self._data))  # another object: there may be views of this one
            try:
                count = self._peer.recv_into(memoryview(self._data)[self._end :])
            except BlockingIOError:
                return
            except OSError:
                count = 0
            self._end += count
            self.is_over = count == 0
            if self._end < len(self._data):
                return

    def end(self) -> None:
        """Shut the connection down; both sides notice when they poll."""
        self.is_over = True
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection and its descriptor; idempotent."""
        self.is_over = True
        self._peer.close()
