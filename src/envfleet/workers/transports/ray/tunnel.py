"""Connections by actor calls, for workers that cannot reach the driver: slower, but through the port that Ray has.

Either end is a pair of ordinary sockets, so that nothing else knows about it. Bytes are carried in order, because each
call is made after the one before it has returned.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

_CHUNK = 1 << 20
_WAIT_S = 1.0
_NUM = 2  # sockets: control and data


class TunnelEnd:
    """One end: the inner sockets, and functions that move bytes between them and the other end.

    Attributes:
        outer: Sockets for the program, control first.
    """

    def __init__(self) -> None:
        pairs = [socket.socketpair() for _ in range(_NUM)]
        self.outer, self._inner = [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def take(self) -> list[bytes]:
        """Wait up to a second for bytes of the program; returns those of each socket, which may be none.

        Raises:
            ConnectionError: The program has closed a socket.
        """
        poll = select.poll()  # select() fails on descriptors above 1,023, which drivers of many workers have
        for peer in self._inner:
            poll.register(peer, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(_WAIT_S * 1000)}
        chunks = [peer.recv(_CHUNK) if peer.fileno() in ready else b"" for peer in self._inner]
        if any(peer.fileno() in ready and not chunk for peer, chunk in zip(self._inner, chunks, strict=True)):
            raise ConnectionResetError("this end was closed")
        return chunks

    def give(self, chunks: Sequence[bytes]) -> None:
        """Pass bytes from the other end to the program."""
        for peer, chunk in zip(self._inner, chunks, strict=True):
            peer.sendall(chunk)

    def close(self) -> None:
        """Close the inner sockets, which the program notices; idempotent."""
        for peer in self._inner:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()


def dig(actor: Any, is_useful: Callable[[], bool]) -> list[socket.socket]:
    """Return sockets that are connected to those of an actor, by calls of its `give` and `take`.

    Args:
        actor: Actor with these methods.
        is_useful: Asked before each call; False ends the connection.
    """
    end = TunnelEnd()

    def carry(step: Callable[[], None]) -> None:
        with contextlib.suppress(OSError, RayError, ValueError):  # one of both ends is gone
            while is_useful():
                step()
        end.close()

    def send() -> None:
        chunks = end.take()
        if any(chunks):
            ray.get(actor.give.remote(chunks))

    def receive() -> None:
        end.give(ray.get(actor.take.remote()))

    for step in (send, receive):
        threading.Thread(target=carry, args=(step,), name="envfleet-tunnel", daemon=True).start()
    return end.outer
