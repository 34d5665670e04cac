"""The Ray backend: workers are actors; those that reach the driver's memory are served as processes are."""

from __future__ import annotations

import collections
import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from envfleet.core.group import GroupInfo
from envfleet.core.messages import ALL_ROWS, Completion
from envfleet.core.shared import SharedArrays
from envfleet.core.transport import GroupPlan
from envfleet.errors import EnvfleetError, Failure, RestartBudgetSpent, WorkerDied
from envfleet.transports.link import Link, WorkerLink
from envfleet.transports.process import ProcessTransport
from envfleet.transports.ray.cluster import cluster
from envfleet.transports.ray.connection import Connection
from envfleet.transports.ray.mailbox import Mailbox
from envfleet.transports.ray.options import RayOptions
from envfleet.transports.ray.placing import Placed, Placing
from envfleet.transports.ray.remote_link import RemoteLink, Sent
from envfleet.transports.ray.rendezvous import Caller, hand_over
from envfleet.transports.ray.watcher import Watchers

LOOK_S = 1.0
"""How often to look whether Ray is still there, while answers of actors are awaited."""

LAST_WORDS_S = 0.5
"""How long to wait for what Ray has to say of a worker that ended."""

WORDS = 200


class RayTransport(ProcessTransport):
    """Runs each group in an actor that Ray places.

    A worker that reaches the driver's memory is a worker like those of the process backend, pipes, signals and all. The
    others go by actor calls (`RemoteLink`), whose answers come to one mailbox that is polled beside the pipes.

    Args:
        plans: One per worker.
        shared: The fleet's shared data.
        options: What each worker asks of Ray.

    Raises:
        EnvfleetError: This process is connected to Ray in a way that will not do.
    """

    name = "ray"

    def __init__(self, plans: Sequence[GroupPlan], shared: SharedArrays, options: RayOptions) -> None:
        super().__init__(plans, shared)
        self._options = options
        self._actors: dict[int, Any] = {}  # held, for Ray ends an actor that nobody holds
        self._runs: dict[int, Any] = {}  # the calls in which workers serve through shared memory
        self._num_restarts: collections.Counter[int] = collections.Counter()
        self._shared_ref: Any = None
        self._connection = Connection()
        self._watchers = Watchers(self._connection)
        self._held = contextlib.ExitStack()

    def start(self, timeout_s: float) -> list[GroupInfo]:
        """Have Ray place the workers, and build the groups in them, all at once."""
        deadline_s = time.monotonic() + timeout_s
        self._held.enter_context(cluster.held())
        return super().start(deadline_s - time.monotonic())

    def _open(self) -> None:
        super()._open()
        self._mailbox = Mailbox()
        self._held.callback(self._mailbox.close)
        self._poller.register(self._mailbox.fd)

    # ------------------------------------------------------------------ places

    def _connect(self, plans: Sequence[GroupPlan], timeout_s: float) -> Iterator[WorkerLink]:
        """Place a worker for each plan; yields their links in order."""
        if not self._connection.is_open():
            raise EnvfleetError("Ray was shut down while the fleet was in use: make a new one")
        self._connection.require_head(timeout_s)
        workers = [plan.options.worker for plan in plans]
        placed = Placing(workers, self._options, self._connection, connect=self._welcome, timeout_s=timeout_s).run()
        try:
            links = [self._seat(worker, one) for worker, one in zip(workers, placed, strict=True)]
        except RayError as error:
            for one in placed:
                one.give_up()
            raise EnvfleetError(f"workers that were placed could not be set up: {error}") from error
        yield from links

    def _welcome(self, caller: Caller) -> Link:
        return self._link_to(caller.worker, lambda fds, ours: hand_over(caller, fds))

    def _seat(self, worker: int, placed: Placed) -> WorkerLink:
        self._actors[worker] = placed.actor
        if placed.link is not None:
            self._runs[worker] = placed.actor.run.remote()
            return placed.link
        self._runs.pop(worker, None)
        if self._shared_ref is None:
            self._shared_ref = ray.put(self._shared.arrays)
        return RemoteLink(
            worker,
            placed.actor,
            placed.seat,
            mailbox=self._mailbox,
            watchers=self._watchers,
            view=self.rows_view,
            shared=self._shared_ref,
            connection=self._connection,
        )

    def place(self, worker: int) -> str:
        """Node and way of a worker."""
        link = self._links[worker]
        if isinstance(link, RemoteLink):
            return f"node {link.seat.host}, actor calls ({link.seat.reason})"
        return "this machine, shared memory"

    @property
    def note(self) -> str:
        """How many workers go which way."""
        remote = len(self._remote_links())
        near = len(self._links) - remote  # nobody is there before the start and after the end
        ways = [f"{near} by shared memory"] * bool(near) + [f"{remote} by actor calls"] * bool(remote)
        return ", ".join(ways)

    def _remote_links(self) -> list[RemoteLink]:
        return [link for link in self._links if isinstance(link, RemoteLink)]

    def restart(self, worker: int, lost: str | None, timeout_s: float) -> None:
        """Have Ray place a new worker, wherever there is room now."""
        limit = self._options.max_restarts
        if self._num_restarts[worker] == limit:
            raise RestartBudgetSpent(
                f"worker {worker} was replaced {limit} times, as often as ray_options['max_restarts'] allows; this "
                f"time it was lost because: {lost}"
            )
        self._num_restarts[worker] += 1
        super().restart(worker, lost, timeout_s)

    # ------------------------------------------------------------------ waiting

    def _poll(self, timeout_s: float | None) -> list[Completion]:
        remote = self._remote_links()
        if not remote:
            return super()._poll(timeout_s)
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = deadline_s - time.monotonic()
            found = super()._poll(max(min(left_s, LOOK_S), 0.0))
            if not found and (why := self._connection.why_lost()) is not None:
                self._lose_all(EnvfleetError(why), found)
            if found or left_s <= LOOK_S:
                break
        if not found:
            for link in remote:
                link.look()
        return found

    def _note_end(self, sentinel_fd: int, found: list[Completion]) -> None:
        if sentinel_fd == self._mailbox.fd:
            for sent, future in self._mailbox.take():
                self._take_answer(sent, future, found)
        else:
            super()._note_end(sentinel_fd, found)

    def _take_answer(self, sent: Sent, future: Any, found: list[Completion]) -> None:
        link = sent.link
        if link.is_dead or link is not self._links[link.index]:
            return  # of a worker that was replaced
        try:
            found += link.hear(sent, future)
        except Exception as error:  # noqa: BLE001 - whatever Ray says, the worker is lost
            self._lose(link, error, found)

    def _lose(self, link: RemoteLink, error: BaseException, found: list[Completion]) -> None:
        link.is_dead = True
        link.handle.kill()
        death = self._reasons.pop(link.index, None)
        if death is None:
            death = _explain(self._describe_death(link), error, f"node {link.seat.host}")
        found.append(Completion(link.index, 0, ALL_ROWS, death=death))

    def _lose_all(self, error: EnvfleetError, found: list[Completion]) -> None:
        for link in self._remote_links():
            if not link.is_dead:
                self._lose(link, error, found)

    def _describe_death(self, link: WorkerLink) -> WorkerDied:
        death = super()._describe_death(link)
        run = self._runs.get(link.index)
        if isinstance(link, RemoteLink) or run is None:
            return death
        if (why := self._connection.why_lost()) is not None:
            return _explain(death, EnvfleetError(why), "this machine")
        try:
            ray.get(run, timeout=LAST_WORDS_S)
        except GetTimeoutError:
            return death
        except RayError as error:
            return _explain(death, error, "this machine")
        return death

    # ------------------------------------------------------------------ the end

    def close(self, timeout_s: float) -> list[Failure]:
        """Ask every worker to close its sub-environments and end; kill those that do not within `timeout_s`."""
        try:
            return super().close(timeout_s)
        finally:
            self._watchers.close()
            self._held.close()


def _explain(death: WorkerDied, error: BaseException, where: str) -> WorkerDied:
    """Add what Ray has to say of the end of a worker."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    text = str(error) if cause is None else f"{type(cause).__name__}: {cause}"
    for mark in ("Worker exit detail: ", "The actor is dead because "):
        _, found, rest = text.partition(mark)
        if found:
            text = rest
            break
    words = " ".join(text.split())
    short = words if len(words) <= WORDS else words[: WORDS - 1] + "…"
    explained = death.because(f"was lost on {where} (Ray: {short})")
    explained.__cause__ = error
    return explained
