"""Bodies of requests: how many bytes, how long, and how much of all of them is held at a time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Hashable

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

from envfleet.service.refusals import Busy

_FREE_BYTES = 64 * 2**10
"""Bytes of a body that do not count; the limit on connections bounds those of all."""


class BodyRoom:
    """Memory for the bodies that are being received and handled.

    Args:
        total_bytes: Maximum size of all bodies together.
        own_bytes: Maximum size of the bodies of one owner.
    """

    def __init__(self, total_bytes: int, own_bytes: int) -> None:
        self._total_bytes, self._own_bytes = total_bytes, own_bytes
        self._held: Counter[Hashable] = Counter()

    def take(self, owner: Hashable, size_bytes: int) -> None:
        """Count bytes that arrived.

        Raises:
            Busy: They are too many.
        """
        if self._held[owner] + size_bytes > self._own_bytes or self._held.total() + size_bytes > self._total_bytes:
            raise Busy(
                f"bodies of more than {self._own_bytes:,} bytes are being sent with this token, or too many by all "
                "users: send fewer at a time",
                retry_after_s=1.0,
            )
        self._held[owner] += size_bytes

    def give_back(self, owner: Hashable, size_bytes: int) -> None:
        """Count bytes that are no longer held."""
        self._held[owner] -= size_bytes
        if not self._held[owner]:
            del self._held[owner]


class Body:
    """The body of one request, received within its limits. Call `release` when the request has been handled.

    Args:
        scope: The request's.
        receive: The request's.
        room: Memory that all bodies share.
        patience_s: Seconds to wait for the next piece.
    """

    def __init__(self, scope: Scope, receive: Receive, room: BodyRoom, *, patience_s: float) -> None:
        self._receive, self._room, self._patience_s = receive, room, patience_s
        self._begun, self._received, self._counted, self._is_whole = time.perf_counter(), 0, 0, False
        self._declared, self._owner = 0, b""
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit():
                self._declared = int(value)
            elif name in (b"authorization", b"user-token"):
                self._owner = value

    async def receive(self, most_bytes: int, whole_s: float) -> Message:
        """Return the next message.

        Args:
            most_bytes: Size limit of the whole body.
            whole_s: Seconds from the request's start in which the body must be whole.

        Raises:
            HTTPException: 413 if the body is or will be too large, 408 if it is late.
            Busy: Too many bodies are being received.
        """
        _check_size(self._declared, most_bytes)  # nothing is read of a body that is too large
        try:
            left_s = self._begun + whole_s - time.perf_counter()
            async with asyncio.timeout(None if self._is_whole else min(self._patience_s, left_s)):
                message = await self._receive()
        except TimeoutError:
            missed = f"the body paused for {self._patience_s:g} s or was not whole after {whole_s:g} s"
            raise HTTPException(408, f"{missed}: send it again, or less at a time") from None
        self._received += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        _check_size(self._received, most_bytes)
        counted = max(self._received - _FREE_BYTES, 0)
        if counted > self._counted:
            self._room.take(self._owner, counted - self._counted)
            self._counted = counted
        return message

    async def read(self, most_bytes: int, whole_s: float) -> bytes:
        """Return the whole body; raises as `receive`."""
        pieces: list[bytes] = []
        while True:
            message = await self.receive(most_bytes, whole_s)
            if message["type"] == "http.disconnect":
                raise HTTPException(408, "the connection was closed before the body was whole: send it again")
            pieces.append(message.get("body", b""))
            if not message.get("more_body", False):
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def release(self) -> None:
        """Give the memory back."""
        if self._counted:
            self._room.give_back(self._owner, self._counted)
            self._counted = 0


def _check_size(size_bytes: int, most_bytes: int) -> None:
    if size_bytes > most_bytes:
        raise HTTPException(
            413, f"the body has more than {most_bytes:,} bytes, the limit of this call: send less at a time"
        )
