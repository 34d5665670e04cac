"""Connections to workers that another process has started: authentication, and frames of fixed layout.

Data of a peer is interpreted only after both sides have proven that they have the fleet's key. From then on they trust
each other like processes of one cluster.

Problem. Firewalls, restarted switches and moving addresses close connections although both processes live. Frames that
were under way are lost, and neither side knows which.

Solution. Frames are numbered. A sender keeps those that its peer has not confirmed; every frame confirms the last one
that was read. The worker connects again; each side says which frame it read last, and the other repeats what followed.
So each frame is read exactly once, whatever happened to the connection.
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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from envfleet.workers.board import Poller

PROOF_BYTES = 32
GREETING = struct.Struct(f"<{PROOF_BYTES}s2q{PROOF_BYTES}s")
"""Layout of a worker's answer to the owner's nonce: its nonce, its ticket, the last frame it has read, its proof."""

WELCOME = struct.Struct(f"<{PROOF_BYTES}sq")
"""Layout of the owner's answer: its proof, and the last frame it has read."""

NUM_WORDS = 11
HEAD = struct.Struct(f"<{3 + NUM_WORDS}q")
"""Header of a frame: number of bytes that follow, its number, the last number that its sender has read, and words."""

MAX_FDS = 16
MAX_STRANGERS = 64
"""Maximum number of connected peers without authentication; the oldest is disconnected first."""

_ROOM_S = 1.0
_NO_WORDS = (0,) * NUM_WORDS

Frame: TypeAlias = "tuple[list[int], memoryview]"
"""Words of a frame, and its bytes, which are valid until the next frame is read."""


# ---------------------------------------------------------------------------------------------------- authentication


def _prove(key: bytes, role: bytes, nonces: bytes, ticket: int) -> bytes:
    return hmac.digest(key, role + nonces + ticket.to_bytes(8, "little", signed=True), "sha256")


def introduce(peer: socket.socket, key: bytes, ticket: int, num_read: int = 0) -> tuple[list[int], int]:
    """Prove to an owner that this process has the fleet's key, and check its proof.

    Args:
        peer: Blocking socket, connected to the owner's `Listener`.
        key: Key of the fleet.
        ticket: Ticket of this connection.
        num_read: Number of the last frame that was read, if an earlier connection was lost.

    Returns:
        Descriptors from the owner, and the number of the last frame that the owner has read.

    Raises:
        ConnectionError: The owner closed the connection, or does not have the key.
    """
    owner_nonce, worker_nonce = peer.recv(PROOF_BYTES, socket.MSG_WAITALL), secrets.token_bytes(PROOF_BYTES)
    peer.sendall(
        GREETING.pack(worker_nonce, ticket, num_read, _prove(key, b"worker", owner_nonce + worker_nonce, ticket))
    )
    answer, fds, _, _ = socket.recv_fds(peer, WELCOME.size, MAX_FDS, socket.MSG_WAITALL)
    proof, num_known = WELCOME.unpack(answer) if len(answer) == WELCOME.size else (b"", 0)
    if hmac.compare_digest(proof, _prove(key, b"owner", owner_nonce + worker_nonce, ticket)):
        return fds, num_known
    for fd in fds:
        os.close(fd)
    raise ConnectionRefusedError(
        "the owner does not have the fleet's key" if proof else "the owner closed the connection"
    )


class Greeting(NamedTuple):
    """First message of an authenticated worker.

    Attributes:
        ticket: Ticket of the connection.
        num_read: Number of the last frame that the worker has read.
    """

    ticket: int
    num_read: int


class Listener:
    """Address at which workers connect. Unknown clients get no answer and block nothing.

    Args:
        server: Listening socket, which the listener closes.
        key: Key of the fleet.
        poller: Poller that reports new peers.
        welcome: Called with the greeting of an authenticated worker, the connection, and this side's proof to send.
    """

    def __init__(
        self,
        server: socket.socket,
        key: bytes,
        poller: Poller,
        welcome: Callable[[Greeting, socket.socket, bytes], None],
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
            worker_nonce, ticket, num_read, proof = GREETING.unpack(peer.recv(GREETING.size))
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        except (OSError, struct.error):
            proof = b""
        if proof and hmac.compare_digest(proof, _prove(self._key, b"worker", nonce + worker_nonce, ticket)):
            self._welcome(Greeting(ticket, num_read), peer, _prove(self._key, b"owner", nonce + worker_nonce, ticket))
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


def enable_keepalive(peer: socket.socket, timeout_s: float) -> None:
    """Let the kernel end a TCP connection after `timeout_s` of silence from the other machine.

    The kernel of the other machine answers, so a process that is merely busy, or stopped, is not silent.
    """
    interval_s = max(1, round(timeout_s / 6))
    settings = {
        "TCP_KEEPIDLE": interval_s,
        "TCP_KEEPINTVL": interval_s,
        "TCP_KEEPCNT": 5,
        "TCP_USER_TIMEOUT": round(timeout_s * 1000),
    }
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in settings.items():
        if hasattr(socket, name):  # not every system has all of them
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# ------------------------------------------------------------------------------------------------------------ frames


class Connection:
    """Frames over a connected socket. Reading never blocks; sending reads while it waits.

    A broken connection is not an exception but the state `is_over`, until `resume` continues on another socket.

    Args:
        peer: Socket, which the connection closes.
        gives_up: Called repeatedly while sending waits; True ends the wait.

    Attributes:
        fd: Descriptor of the socket.
        is_over: True if the socket is of no use any more.
        num_read: Number of the last frame that was read.
        cause: Error of the operating system that ended the connection, in words; empty if the peer closed it.
    """

    def __init__(self, peer: socket.socket, gives_up: Callable[[], bool] = lambda: False) -> None:
        self._gives_up = gives_up
        self._num_sent = self.num_read = 0
        self._unconfirmed: deque[tuple[int, bytes]] = deque()
        self._take(peer)

    def _take(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        if peer.family != socket.AF_UNIX:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peer, self.fd, self.is_over, self.cause = peer, peer.fileno(), False, ""
        self._data, self._end = bytearray(1 << 16), 0

    def resume(self, peer: socket.socket, num_confirmed: int) -> None:
        """Continue on another socket: repeat what was sent after frame `num_confirmed`."""
        self._peer.close()
        self._take(peer)
        self._confirm(num_confirmed)
        for _, frame in list(self._unconfirmed):
            self._write(frame)

    def send(self, words: Sequence[int], parts: Iterable[Any] = ()) -> None:
        """Send a frame; `parts` are contiguous buffers."""
        self._num_sent += 1
        frame = self._pack(self._num_sent, words, b"".join(parts))
        self._unconfirmed.append((self._num_sent, frame))
        self._write(frame)

    def mention(self, words: Sequence[int]) -> None:
        """Send a frame without a body that is not repeated if the connection is lost."""
        self._write(self._pack(0, words, b""))

    def _pack(self, number: int, words: Sequence[int], body: bytes) -> bytes:
        return HEAD.pack(len(body), number, self.num_read, *words, *_NO_WORDS[len(words) :]) + body

    def _write(self, frame: bytes) -> None:
        data = memoryview(frame)
        try:
            while data and not self.is_over:
                try:
                    data = data[self._peer.send(data) :]
                except BlockingIOError:
                    self._await_room()
        except OSError as error:
            self._fail(error)
        finally:
            if 0 < len(data) < len(frame):  # torn by Ctrl-C
                self.end()

    def _await_room(self) -> None:
        poll = select.poll()
        poll.register(self.fd, select.POLLIN | select.POLLOUT)
        ready = poll.poll(_ROOM_S * 1000)
        if not ready and self._gives_up():
            self.end()
        elif ready and ready[0][1] != select.POLLOUT:
            self._read()

    @property
    def has_data(self) -> bool:
        """True if data was read from the socket and is not taken from here; polling does not report it."""
        return self._end > 0

    def frames(self) -> Iterator[Frame]:
        """Read the available data and yield the complete frames that are new.

        A frame counts as read once the next one is asked for: after an interruption before that, it is yielded again.
        """
        self._read()
        start = 0
        while self._end - start >= HEAD.size:
            size, number, confirmed, *words = HEAD.unpack_from(self._data, start)
            body = start + HEAD.size
            if body + size > self._end:
                break
            start = body + size
            self._confirm(confirmed)
            if number > self.num_read or number == 0:
                yield words, memoryview(self._data)[body:start]
                self.num_read = max(self.num_read, number)
        if start:
            self._end -= start
            self._data[: self._end] = self._data[start : start + self._end]

    def _confirm(self, number: int) -> None:
        while self._unconfirmed and self._unconfirmed[0][0] <= number:
            self._unconfirmed.popleft()

    def _read(self) -> None:
        while not self.is_over:
            if self._end == len(self._data):
                self._data = self._data + bytes(len(self._data))  # another object: there may be views of this one
            room = memoryview(self._data)[self._end :]
            try:
                count = self._peer.recv_into(room)
            except BlockingIOError:
                return
            except OSError as error:
                self._fail(error)
                return
            except BaseException:  # Ctrl-C, after bytes were taken from the socket: the peer has to repeat them
                self.end()
                raise
            self._end += count
            self.is_over = count == 0
            if self._end < len(self._data):
                return

    def _fail(self, error: OSError) -> None:
        self.cause = os.strerror(error.errno) if error.errno else str(error)
        self.end()

    def end(self) -> None:
        """Shut the connection down; both sides notice when they poll."""
        self.is_over = True
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection and its descriptor; idempotent."""
        self.is_over = True
        self._peer.close()
