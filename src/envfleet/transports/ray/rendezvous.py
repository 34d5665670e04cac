"""How a worker on the driver's own machine finds the fleet's memory: by trying.

The driver listens on a Unix socket. Whoever can connect to it shares its kernel, and so can be given the descriptors of
the shared block and of the pipes; whoever cannot goes by actor calls. No address is compared, since containers share
addresses without sharing memory, and share memory under several addresses.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import select
import shutil
import socket
import struct
import tempfile
from pathlib import Path
from typing import NamedTuple

from envfleet.transports.handle import WorkerHandle
from envfleet.transports.nursery import open_pidfd, receive_descriptors

TOKEN_BYTES = 32
GREETING = struct.Struct(f"<{TOKEN_BYTES}sII")
"""What a worker says: the token, its index, its process id."""

MAX_FDS = 16
HANDOVER_S = 10.0
"""How long either side waits for the other once they are connected."""

_CREDENTIALS = struct.Struct("3i")


class Caller(NamedTuple):
    """A worker that reached the driver: its index, its process, and the connection to it."""

    worker: int
    pid: int
    connection: socket.socket


class Address(NamedTuple):
    """Where the driver waits for workers of its machine, and what they must say."""

    path: str
    token: bytes


class Rendezvous:
    """The driver's end. Only its own user can reach it, and only with the token."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="envfleet-")
        path = str(Path(self._folder) / "meet")
        self.address = Address(path, secrets.token_bytes(TOKEN_BYTES))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(path)
            self._socket.listen(1024)
            self._socket.setblocking(False)
        except OSError:
            self.close()
            raise

    def accept(self, timeout_s: float) -> Caller | None:
        """Wait for the next worker; `None` if none came, or one that must not be let in."""
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return None
        try:
            connection, _ = self._socket.accept()
        except OSError:  # it gave up in between
            return None
        connection.settimeout(HANDOVER_S)
        caller = None
        with contextlib.suppress(OSError):
            said = connection.recv(GREETING.size, socket.MSG_WAITALL)
            caller = self._recognise(said, connection)
        if caller is None:
            connection.close()
        return caller

    def _recognise(self, said: bytes, connection: socket.socket) -> Caller | None:
        if len(said) != GREETING.size:
            return None
        token, worker, pid = GREETING.unpack(said)
        if not hmac.compare_digest(token, self.address.token):
            return None
        if hasattr(socket, "SO_PEERCRED"):  # as this process would name it: it may see the worker under another number
            data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid = _CREDENTIALS.unpack(data)[0]
        # A process that cannot be seen from here cannot be watched or ended.
        return Caller(worker, pid, connection) if pid > 0 else None

    def close(self) -> None:
        """Let nobody in any more."""
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def hand_over(caller: Caller, fds: list[int]) -> WorkerHandle:
    """Give a worker its descriptors; returns its handle, which keeps the connection.

    Raises:
        OSError: It is gone.
    """
    socket.send_fds(caller.connection, [b"f"], fds)
    caller.connection.setblocking(True)
    return WorkerHandle(
        caller.pid, open_pidfd(caller.pid), caller.connection, is_child=False, on_close=lambda handle: None
    )


def meet(address: Address, worker: int) -> tuple[socket.socket, list[int]] | str:
    """In the worker: try to reach the driver. Returns the connection and the descriptors, or why there are none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(HANDOVER_S)
    try:
        connection.connect(address.path)
        connection.sendall(GREETING.pack(address.token, worker, os.getpid()))
        _, fds = receive_descriptors(connection, 1, MAX_FDS)
    except OSError as error:
        connection.close()
        return f"{type(error).__name__}: {error}"
    if not fds:
        connection.close()
        return "the driver turned it away"
    connection.settimeout(None)
    return connection, fds
