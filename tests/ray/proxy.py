"""TCP proxy between a driver and its workers, which delays, drops and cuts connections as networks do."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from typing import Any


class Proxy(threading.Thread):
    """Forwards connections to an address until it is closed.

    Args:
        target: Address to forward to.

    Attributes:
        address: Address to connect to.
        is_silent: While True, nothing is forwarded, and no connection is closed.
        num_cuts: Connections that were cut.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__(name="proxy", daemon=True)
        self._target, self._server = target, socket.create_server((target[0], 0))
        self.address: tuple[str, int] = self._server.getsockname()[:2]
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._is_over = self.is_silent = False
        self.num_cuts = 0
        self._lock = threading.Lock()
        self.start()

    def run(self) -> None:
        while not self._is_over:
            with self._lock:
                self._forward()

    def _forward(self) -> None:
        watched = [] if self.is_silent else [self._server, *self._pairs]
        for peer in select.select(watched, [], [], 0.02)[0]:
            if peer is self._server:
                one, _ = self._server.accept()
                with contextlib.suppress(OSError):
                    other = socket.create_connection(self._target)
                    self._pairs |= {one: other, other: one}
                    continue
                one.close()
            elif peer in self._pairs:
                try:
                    data = peer.recv(1 << 16)
                    self._pairs[peer].sendall(data)
                except OSError:
                    data = b""
                if not data:
                    self._end(peer)

    def _end(self, peer: socket.socket, linger: Any = None) -> None:
        for one in (peer, self._pairs.pop(peer)):
            self._pairs.pop(one, None)
            if linger is not None:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            one.close()

    def cut(self) -> None:
        """Reset all connections."""
        with self._lock:
            while self._pairs:
                self.num_cuts += 1
                self._end(next(iter(self._pairs)), struct.pack("ii", 1, 0))

    def close(self) -> None:
        self._is_over = True
        self.join()
        self.cut()
        self._server.close()
