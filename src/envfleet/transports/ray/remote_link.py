"""The driver's side of a worker that does not share its memory: a call for each request."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import cloudpickle
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from envfleet.core.arrays import ArraysSpec, FleetArrays, PlaceWord
from envfleet.core.layout import BlockLayout
from envfleet.core.messages import ALL_ROWS, Completion, Reply, Request, Verb
from envfleet.core.transport import GroupPlan
from envfleet.transports.ray.actor import Seat
from envfleet.transports.ray.cluster import end_actor
from envfleet.transports.ray.connection import Connection
from envfleet.transports.ray.mailbox import Mailbox
from envfleet.transports.ray.one_by_one import completions
from envfleet.transports.ray.parcels import (
    Packed,
    decode_parcel,
    encode_call,
    past_of,
    put_progress,
    put_results,
    rows_written,
)
from envfleet.transports.ray.watcher import Watched, Watchers

STACK_S = 10.0
"""How long to wait for a stack: the node's watcher may have to be started first."""


class RemoteHandle:
    """An actor's process, as far as it can be known from elsewhere.

    Args:
        actor: The actor.
        pid: Its process, on its node.
        connection: The connection to Ray.
    """

    sentinel_fd = -1

    def __init__(self, actor: Any, pid: int, connection: Connection) -> None:
        self.pid = pid
        self._actor, self._connection = actor, connection
        self._leaving: Any = None

    def leave(self) -> None:
        """Have it end once it has done what it was asked to; idempotent."""
        if self._leaving is None and self._connection.is_open():
            self._leaving = self._actor.leave.remote()

    def join(self, timeout_s: float | None) -> bool:
        """Wait until it has left, if it was told to; False if it was not."""
        if not self._connection.is_open():
            return True
        if self._leaving is None:
            return False
        has_head = self._connection.can_ask()  # without it nobody may ever say that the worker has left
        return bool(ray.wait([self._leaving], timeout=timeout_s if has_head else 0)[0]) or not has_head

    def exitcode(self) -> None:
        """Not known."""

    def send_signal(self, sig: int) -> None:
        """Not possible from here; the node's watcher can."""

    def kill(self) -> None:
        """End it now; without the head of the cluster, once it has done what it was asked to."""
        if self._connection.can_ask():
            end_actor(self._actor)
        else:
            self.leave()


class Sent(NamedTuple):
    """A call under way: to whom, which method, for what request, and how many the worker had answered by then."""

    link: RemoteLink
    method: str
    request: Request | None
    num_answered: int


class RemoteLink:
    """What ties the driver to a worker that goes by calls; implements `WorkerLink`.

    Args:
        index: The worker's index.
        actor: Its actor.
        seat: Where it was placed.
        mailbox: Where answers arrive.
        watchers: Look after it while it is busy.
        view: Gives the fleet's arrays of some rows.
        shared: The fleet's shared data, or a reference to it.
        connection: The connection to Ray.
    """

    def __init__(
        self,
        index: int,
        actor: Any,
        seat: Seat,
        *,
        mailbox: Mailbox,
        watchers: Watchers,
        view: Callable[[slice], FleetArrays],
        shared: Any,
        connection: Connection,
    ) -> None:
        self.index, self.seat, self.is_dead = index, seat, False
        self.handle = RemoteHandle(actor, seat.pid, connection)
        self._actor, self._mailbox, self._watchers = actor, mailbox, watchers
        self._view, self._shared, self._connection = view, shared, connection
        self._arrays: FleetArrays | None = None
        self._watched: Watched | None = None
        self._is_looked_at = False
        self._num_sent = self._num_answered = 0

    # ------------------------------------------------------------------ to the worker

    def send_plan(self, plan: GroupPlan, shared_layout: BlockLayout | None) -> None:
        """Have it build its group."""
        self._rows, self._is_successor = slice(plan.rows.start, plan.rows.stop), plan.options.incarnation > 0
        self._call("build", None, cloudpickle.dumps((plan, None)), self._shared)

    def send_spec(self, spec: ArraysSpec) -> None:
        """Have it make arrays of its own."""
        self._arrays = arrays = self._view(self._rows)
        for out in arrays.outputs:
            if out.info_present is not None:
                out.info_present[...] = False  # a worker that was here before may have left some
        self._call("bind", None, spec, past_of(arrays, self.index) if self._is_successor else None)

    def submit(self, request: Request) -> None:
        """Call it with a request."""
        if self._arrays is None or self.is_dead:
            return
        self._call("handle", request, encode_call(request, self._arrays))
        if request.verb is Verb.CLOSE:
            self.handle.leave()

    def pipe(self) -> None:
        """There is none: Ray takes arguments of any size."""

    def hang_up(self) -> None:
        """Have it close what it built, and end."""
        self.handle.leave()

    def close(self) -> None:
        """End it, if it still runs."""
        self.handle.kill()

    def _call(self, method: str, request: Request | None, *args: Any) -> None:
        sent = Sent(self, method, request, self._num_answered)
        self._num_sent += 1
        if not self._connection.is_open():
            self._mailbox.fail(RuntimeError("Ray was shut down, or connected anew"), sent)
            return
        try:
            ref = getattr(self._actor, method).remote(*args)
        except RayError as error:  # no room for the arguments, for instance
            self._mailbox.fail(error, sent)
            return
        self._mailbox.expect(ref, sent)

    # ------------------------------------------------------------------ from the worker

    @property
    def is_busy(self) -> bool:
        """Whether it has not answered everything yet."""
        return self._num_answered < self._num_sent and not self.is_dead

    def hear(self, sent: Sent, future: Future[Any]) -> list[Completion]:
        """Take in the outcome of a call.

        Returns:
            What was completed by it.

        Raises:
            BaseException: What Ray says of a worker that is lost.
        """
        if sent.method == "progress":
            self._is_looked_at = False
            if isinstance(future.exception(), RayActorError):
                self._watchers.forget(self.seat.node_id)
            if future.exception() is None and sent.num_answered == self._num_answered and self._arrays is not None:
                put_progress(self._arrays.progress[self.index], future.result())
            return []
        self._num_answered += 1
        answer = future.result()
        if sent.method == "build":
            return [Completion(self.index, 0, ALL_ROWS, _decoded(answer))]
        if sent.method == "bind":
            self._watched = answer
            return []
        return [] if sent.request is None else self._unpack(sent.request, answer)

    def _unpack(self, request: Request, packed: Packed) -> list[Completion]:
        parcel, rows = decode_parcel(packed), rows_written(request)
        if self._arrays is not None:
            if rows is not None:
                put_results(self._arrays.outputs[request.generation], rows, parcel)
            put_progress(self._arrays.progress[self.index], parcel.progress)
        return [
            completion
            for row, reply in parcel.records
            for completion in completions(request, self.index, self._rows.start, row, _decoded(reply))
        ]

    def read_reply(self, record: tuple[int, ...], stall_s: float) -> Reply | None:
        """Never needed: replies come with the records."""
        return None

    def forget_reply(self) -> None:
        """Never needed, as `read_reply`."""

    # ------------------------------------------------------------------ while it is busy

    def can_look(self) -> bool:
        """Whether it can be asked where it is; not without the head of the cluster."""
        return self._connection.can_ask()

    def look(self) -> None:
        """Ask where it is, if it is busy; the answer is written into its progress line."""
        if not self.is_busy or self._is_looked_at or self._watched is None or not self._connection.can_ask():
            return
        self._is_looked_at = True
        watcher = self._watchers.on(self.seat.node_id)
        sent = Sent(self, "progress", None, self._num_answered)
        self._mailbox.expect(watcher.progress.remote(self._watched), sent)

    def interrupt(self) -> None:
        """Have the node's watcher raise inside the stuck sub-environment."""
        if self._watched is not None and self._arrays is not None and self._connection.can_ask():
            place = int(self._arrays.progress[self.index][PlaceWord.INTERRUPT])
            self._watchers.on(self.seat.node_id).interrupt.remote(self._watched, place)

    def stack(self) -> str:
        """The worker's Python stacks; empty if they cannot be had within ten seconds."""
        if self._watched is None or not self._connection.can_ask():
            return ""
        with contextlib.suppress(GetTimeoutError, RayError):
            text: str = ray.get(self._watchers.on(self.seat.node_id).stack.remote(self._watched), timeout=STACK_S)
            return text
        return ""


def _decoded(reply: bytes | None) -> Reply | None:
    return None if reply is None else pickle.loads(reply)
