"""The calls to one service: one after the other in the order of their numbers, each carried out at most once.

A service numbers the resets and steps of a fleet, and carries them out one at a time. When it is a call's
turn, it gets the next number and a random key; from then on its bytes stay the same, and sending them again returns
the stored reply if the call was carried out. So a call without an answer keeps its place, and those behind it wait.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import EnvfleetError, ServiceUnreachable, WireError
from envfleet.remote.codec import pack
from envfleet.remote.service_link import ServiceLink

KEY_BYTES = 16
_CLOSE_S = 3.0


@dataclasses.dataclass(eq=False)
class ServiceCall:
    """A call to one service.

    Attributes:
        queue: Queue of the service that it is for.
        verb: `"step"` or `"reset"`.
        fields: The request's, without number and key.
        rows: Sub-environments that it concerns, by their index in the fleet.
        read: Reads the reply to a call; raises `WireError`.
        sent: Number and bytes, once it was its turn.
        answer: Result of `read`, after the reply.
        answered_at: When that was, by the monotonic clock.
        error: Reason for the missing answer, after an attempt.
        task: Sends it in the background.
    """

    queue: ServiceQueue
    verb: str
    fields: Mapping[str, Any]
    rows: NDArray[np.int64]
    read: Callable[[ServiceCall, Mapping[str, Any]], Any]
    sent: tuple[int, bytes] | None = None
    answer: Any = None
    answered_at: float = 0.0
    error: Exception | None = None
    task: concurrent.futures.Future[None] | None = None

    @property
    def is_refused(self) -> bool:
        """Return whether the service refused it: it was not carried out, and has left the queue."""
        return isinstance(self.error, EnvfleetError) and not isinstance(self.error, (ServiceUnreachable, WireError))

    def is_like(self, other: ServiceCall) -> bool:
        """Return whether another call asks for the same."""
        is_same_verb = self.queue is other.queue and self.verb == other.verb
        return is_same_verb and pack(self.fields) == pack(other.fields)


class ServiceQueue:
    """The calls to the part of a fleet that one service holds.

    Args:
        link: Link to the service.
        fleet_id: The service's id of that part.
        span: Its sub-environments.
        seq: Number of calls that it has made.

    Attributes:
        seq: Number of the next call.
        is_astray: True if the service has refused that number.
    """

    def __init__(self, link: ServiceLink, fleet_id: str, span: range, *, seq: int = 0) -> None:
        self.link, self.fleet_id, self.span = link, fleet_id, span
        self.seq, self.is_astray = seq, False
        self._calls: collections.deque[ServiceCall] = collections.deque()
        self._sending = threading.Lock()
        self._executor = concurrent.futures.ThreadPoolExecutor(1, "envfleet-remote")

    def put(self, call: ServiceCall) -> None:
        """Have a call without an answer sent, or sent again, by the next `send`."""
        if call.answer is None:
            call.error = None
            if call not in self._calls:
                self._calls.append(call)

    def start(self, call: ServiceCall) -> None:
        """Put a call and send it in the background, unless that is under way."""
        self.put(call)
        if call.task is None or call.task.done():
            call.task = self._executor.submit(self.send, call)

    def send(self, call: ServiceCall) -> None:
        """Send calls in their order, until this one has an answer or an error; wait if another thread does so."""
        try:
            with self._sending:
                while call.error is None and call in self._calls:
                    if self._calls[0].error is not None:  # it waits until it is put again
                        raise self._calls[0].error
                    self._send_first()
        except Exception as error:  # noqa: BLE001  # reported to the thread that waits for the call
            call.error = error

    def _send_first(self) -> None:
        """Send the first call, which leaves the queue unless its fate is unknown. An interruption loses nothing."""
        first = self._calls[0]
        if first.answer is None:
            if first.sent is None:
                key = secrets.token_bytes(KEY_BYTES)
                first.sent = self.seq, pack({"seq": self.seq, "key": key, **first.fields})
            number, body = first.sent
            try:
                reply = self.link.post(f"/fleets/{self.fleet_id}/{first.verb}", body)
                if not isinstance(reply, dict) or reply.get("seq") != number + 1:
                    raise WireError(f"{self.link.url} answered {reply!r:.100}, expected a reply to call {number}")
                answer = first.read(first, reply)
                first.error, first.answered_at, first.answer = None, time.monotonic(), answer
            except EnvfleetError as error:
                first.error = error
                if not first.is_refused:
                    raise
                first.sent = None
                self.is_astray |= getattr(error, "reason", "") == "out_of_step"
        if first.sent is not None:
            self.seq = first.sent[0] + 1
        self._calls.popleft()

    def catch_up(self) -> None:
        """Drop all calls, and ask the service how many it has carried out.

        Raises:
            EnvfleetError: See `ServiceLink.post`; nothing was dropped.
        """
        self._cancel()
        with self._sending:
            self.seq = int(self.link.get(f"/fleets/{self.fleet_id}")["seq"])
            self._calls.clear()
            self.is_astray = False

    def _cancel(self) -> None:
        for call in list(self._calls):
            if call.task is not None:
                call.task.cancel()

    def close(self, timeout_s: float) -> None:
        """Close the fleet at the service, unless `timeout_s` is 0, and drop the connection; warn if that fails."""
        self._cancel()
        limit_s = min(timeout_s, _CLOSE_S)
        try:
            if timeout_s:
                body = pack({"key": secrets.token_bytes(KEY_BYTES)})
                self.link.post(f"/fleets/{self.fleet_id}/close", body, patience_s=limit_s)
        except EnvfleetError as error:
            later = "; it closes it when it has been idle for a while" if isinstance(error, ServiceUnreachable) else ""
            warnings.warn(
                f"{self.link.url} did not close fleet {self.fleet_id} ({error}){later}", RuntimeWarning, stacklevel=4
            )
        finally:
            self.link.stop()
            if self._sending.acquire(timeout=limit_s):
                self._sending.release()
            self._executor.shutdown(wait=False)
            self.link.close()
