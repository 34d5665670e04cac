"""Workers that Ray places, each supervised by an actor: on the driver's machine over its memory, elsewhere over TCP."""

from __future__ import annotations

import contextlib
import functools
import itertools
import secrets
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from envfleet.errors import InvalidArgument, WorkersUnplaced
from envfleet.fleet.checks import check_seconds
from envfleet.options import Options
from envfleet.workers.arrays import ArraysSpec, FleetArrays
from envfleet.workers.board import ASKED, DONE
from envfleet.workers.env_group import GroupPlan
from envfleet.workers.serve import Place
from envfleet.workers.transports.far import FarWorker
from envfleet.workers.transports.process import ProcessTransport
from envfleet.workers.transports.ray import cluster
from envfleet.workers.transports.ray.actor import Invitation, RayWorker, Started
from envfleet.workers.transports.socket import Connection, Listener, enable_keepalive

_OF_ACTORS = frozenset({"num_cpus", "num_gpus", "resources", "memory", "scheduling_strategy", "runtime_env"})
_OURS: dict[str, Any] = {"shared_memory": True, "place_timeout_s": 60.0}
_LOOK_S = 0.1
_ANSWER_S = 2.0
_MAX_WORDS = 300


def make_ray(options: Options, plans: Sequence[GroupPlan], shared: dict[str, Any]) -> RayTransport:
    """Run sub-environments in workers that Ray places.

    Raises:
        InvalidArgument: `ray_options` has something unknown or impossible.
    """
    given = dict(options.ray_options or {})
    unknown = sorted(given.keys() - _OF_ACTORS - _OURS.keys())
    if unknown:
        raise InvalidArgument(
            f"ray_options has {unknown}, expected some of {sorted(_OF_ACTORS | _OURS.keys())}: check the spelling; a "
            "placement group goes into Ray's PlacementGroupSchedulingStrategy"
        )
    shared_memory, limit_s = (given.pop(name, value) for name, value in _OURS.items())
    check_seconds("ray_options['place_timeout_s']", limit_s)
    try:
        ray.remote(RayWorker).options(**given)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"ray_options={given}: {error}: pass what Ray's actors take") from error
    return RayTransport(plans, shared, given, shared_memory=shared_memory, limit_s=limit_s)


class _RayWorker:
    """A worker and the actor that starts it, once Ray has placed that; see `WorkerHandle`.

    Args:
        actor: Its actor.
        invitation: For the actor.

    Attributes:
        settled: Whether the actor could connect; in Ray.
        peers: Connections: the lifeline, which ends with the worker and the worker with it, and one for data if the
            worker shares no memory.
        far: The hold on such a worker.
    """

    def __init__(self, actor: Any, invitation: Invitation) -> None:
        self.settled, self._actor, self._session = actor.settle.remote(invitation), actor, cluster.session()
        self.peers: list[socket.socket] = []
        self.far: FarWorker | None = None
        self._started = self._exit = self.settled
        self._is_over = False

    @property
    def sentinel(self) -> int:
        """Readable once the worker has ended; -1 before it has connected."""
        return self.peers[0].fileno() if self.peers else -1

    def start(self, place: Place, shared: Any) -> None:
        """Have the worker started."""
        self._started = self._actor.start.remote(self.settled, place, shared)
        self._exit = self._actor.wait.remote(self._started)

    def _is_cut_off(self) -> bool:
        """Return whether Ray was shut down; it would start again at the next call."""
        return cluster.session() != self._session

    def _get(self, outcome: Any) -> Any:
        """Return what the actor answers, or, in words, why it does not."""
        if self._is_cut_off():
            return "Ray was shut down"
        try:
            return ray.get(outcome, timeout=_ANSWER_S)
        except GetTimeoutError:
            return "Ray does not answer"
        except RayError as error:
            return "Ray: " + " ".join(str(error).split())[-_MAX_WORDS:]  # the end says most

    @property
    def pid(self) -> int:
        """Process id of the worker on its node; 0 without a process."""
        found = self._get(self._started) if self.peers else None
        return found.pid if isinstance(found, Started) else 0

    @property
    def niceness(self) -> int:
        """Niceness of the worker; 0 if it is unknown."""
        found = self._get(self._started) if self.peers else None
        return found.niceness if isinstance(found, Started) else 0

    @property
    def place(self) -> str:
        """Place of the worker."""
        found = self._get(self._started) if self.peers else "not placed yet"
        return found.place if isinstance(found, Started) else str(found)

    def how_ended(self) -> tuple[int | None, str | None]:
        """Return the exit code of the worker, which has ended, or what Ray says of its end."""
        found = self._get(self._exit)
        return (found, None) if isinstance(found, int) else (None, f"was lost on {self.place} ({found})")

    def has_started(self, timeout_s: float) -> bool:
        """Return `True`: the transport waits for all of them, once Ray was asked for each."""
        return True

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Wait until it has ended; returns whether it has."""
        if self.peers and not self._is_over:
            poll = select.poll()
            poll.register(self.sentinel, select.POLLIN)
            self._is_over = bool(poll.poll(max(0.0, timeout_s) * 1000))
            if self._is_over and self.far is not None:
                self.look()()  # where it was
        return self._is_over

    def look(self, *, has_stack: bool = False) -> Callable[[], str]:
        """Ask where it is; returns a function that takes the answer in and returns the stack."""
        answer = None if self._is_cut_off() else self._actor.look.remote(has_stack)

        def hear() -> str:
            found = self._get(answer)
            if isinstance(found, tuple) and self.far is not None:
                self.far.note_progress(found[0])
            return str(found[1] if isinstance(found, tuple) else found)

        return hear

    def stack(self) -> str:
        """Return its Python stack."""
        return "(the worker has ended)" if self._is_over else self.look(has_stack=True)()

    def kill(self) -> None:
        """End it by force, and its actor if that has not connected yet."""
        if self.peers:
            with contextlib.suppress(OSError):
                self.peers[0].shutdown(socket.SHUT_WR)
        else:
            self._is_over = True
            self._end_actor()

    def close(self) -> None:
        """Let go of it and end its actor; idempotent."""
        for peer in self.peers:
            peer.close()
        self._is_over = True
        self._end_actor()

    def _end_actor(self) -> None:
        if not self._is_cut_off() and cluster.has_head():
            with contextlib.suppress(RayError, ValueError):  # it has ended
                ray.kill(self._actor)


class RayTransport(ProcessTransport):
    """Workers that Ray places; see `Transport`.

    Args:
        plans: One per worker.
        shared: The fleet's shared data by name.
        asked: What each worker asks of Ray.
        shared_memory: Whether workers of this machine may map the memory of this process.
        limit_s: Seconds for Ray to place workers.
    """

    def __init__(
        self,
        plans: Sequence[GroupPlan],
        shared: dict[str, Any],
        asked: dict[str, Any],
        *,
        shared_memory: bool,
        limit_s: float,
    ) -> None:
        self._asked, self._limit_s, self._shares_memory, self._shared = asked, limit_s, shared_memory, shared
        self._held = contextlib.ExitStack()
        self._invited: dict[int, int] = {}  # workers that have yet to connect, by ticket
        self._tickets, self._left_s, self._key = itertools.count(), 0.0, secrets.token_bytes(32)
        self._num_far = 0
        self._spec: ArraysSpec | None = None
        self._shared_ref: Any = None
        super().__init__(plans, shared, are_children=False)
        self.processes: list[_RayWorker] = []  # type: ignore[assignment]  # and nothing else
        self.waiter.sleep = self._sleep

    # ----------------------------------------------------------------------------------------------- placing

    def start(self, timeout_s: float) -> None:
        """Have Ray place all workers.

        Raises:
            EnvfleetError: A cluster is missing and cannot be started, or this process cannot use it.
            WorkersUnplaced: Ray did not find a place for every worker.
        """
        self._held.enter_context(cluster.cluster.held())
        self._session = cluster.session()
        self._asked = {"num_cpus": 0 if cluster.cluster.is_own else 1, **self._asked}
        self._limit_s = min(timeout_s, self._limit_s)
        self._listen()
        try:
            super().start(timeout_s)
            while self._invited:
                self._sleep(_LOOK_S)
        except BaseException:
            self._give_up()
            raise

    def _listen(self) -> None:
        """Have workers connect, those of this machine and others."""
        host, self._path = ray.util.get_node_ip_address(), ""
        servers = [socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)]
        if self._shares_memory and sys.platform == "linux":
            self._path = f"\0envfleet-{secrets.token_hex(16)}"  # of no file that could be left behind
            servers.append(socket.socket(socket.AF_UNIX))
            servers[1].bind(self._path)
            servers[1].listen()
        for server in servers:
            self._held.callback(Listener(server, self._key, self._poller, self._welcome).close)
        self._address = host, servers[0].getsockname()[1]

    def _launch(self, plan: GroupPlan) -> _RayWorker:
        """Have Ray start an actor that connects, some time later."""
        actor_class: Any = ray.remote(RayWorker)  # Ray types actors by what no remote call returns
        actor = actor_class.options(**self._asked, max_concurrency=2, max_restarts=0).remote()
        ticket, self._left_s = next(self._tickets), self._limit_s
        self._invited[ticket] = plan.worker
        return _RayWorker(actor, Invitation(self._path, self._address, self._key, ticket, sys.path))

    def _welcome(self, ticket: int, peer: socket.socket, proof: bytes) -> None:
        """Take in a worker that holds the key; one that shares no memory connects twice."""
        worker = self._invited.get(ticket)
        if worker is None:  # it was given up
            peer.close()
            return
        process, is_near = self.processes[worker], peer.family == socket.AF_UNIX
        place, fds = self._places[worker]
        process.peers.append(peer)
        with contextlib.suppress(OSError):  # if it is gone, the lifeline reports that
            if is_near:
                socket.send_fds(peer, [proof], fds)
            else:
                peer.send(proof)
        if not is_near and len(process.peers) < 2:
            return
        del self._invited[ticket]
        self._poller.watch(process.sentinel, process.has_ended)
        if not is_near:
            self._reach(process, place, peer)
        process.start(place, None if is_near else self._shared_ref)
        self._num_far = sum(process.far is not None for process in self.processes)
        ways = {"shared memory": len(self.processes) - self._num_far, "TCP": self._num_far}
        self.note = ", ".join(f"{count} by {way}" for way, count in ways.items() if count)

    def _reach(self, process: _RayWorker, place: Place, peer: socket.socket) -> None:
        """Begin to talk to a worker over TCP, and have the fleet's shared data in Ray's object store for it."""
        enable_keepalive(process.peers[0])
        data, worker = Connection(peer, process.has_ended), place.worker
        far = process.far = FarWorker(data, self.lines[worker], place, self.requests, self.replies[worker])
        self._poller.watch(data.fd, functools.partial(self._take_results, far))
        self.waiter.never_awake()  # nothing is seen of it otherwise
        if self._spec is not None:
            far.attach(self._spec, self._arrays.map(self._spec.block.size_bytes))
        far.ring()
        if self._shared and self._shared_ref is None:
            self._shared_ref = ray.put(self._shared)

    def _take_results(self, far: FarWorker) -> bool:
        if far.take_results():  # the lifeline reports its end
            self._poller.forget(far.data.fd)
        return False

    def _sleep(self, timeout_s: float) -> bool:
        if not self._invited and not self._num_far:
            return self._poller.sleep(timeout_s)
        start_s = time.monotonic()
        needs_attention = self._poller.sleep(min(timeout_s, _LOOK_S) if self._invited else timeout_s)
        took_s = time.monotonic() - start_s
        if self._invited:
            self._left_s -= took_s  # only while a caller looks
            try:
                self._check_invited()
            except BaseException:
                self._give_up()
                raise
        if took_s >= timeout_s:  # a caller will look where they are
            pairs = zip(self.lines, self.processes, strict=True)
            busy = [process for line, process in pairs if process.far is not None and line[DONE] != line[ASKED]]
            for hear in [process.look() for process in busy]:
                hear()
        return needs_attention

    def _check_invited(self) -> None:
        cluster.require_head(self._session)
        left = {self.processes[worker].settled: worker for worker in self._invited.values()}
        failed, _ = ray.wait(list(left), num_returns=len(left), timeout=0)
        if not failed and self._left_s > 0:
            return
        try:
            reason = ray.get(failed[0]) if failed else None
        except RayError as error:
            reason = str(error)
        asked, workers = cluster.describe_request(self._asked), [left[one] for one in failed or left]
        raise WorkersUnplaced(workers, len(self._plans), self._limit_s, asked, cluster.describe(), reason)

    def _give_up(self) -> None:
        """Wait no longer for workers that have yet to connect."""
        self._invited.clear()
        for process in self.processes:
            if not process.peers:
                process.kill()

    # ------------------------------------------------------------------------------------------------- working

    @property
    def remark(self) -> str:
        """Settings that speed depends on."""
        niceness = max(process.niceness for process in self.processes)
        if niceness <= 0:
            return "workers have niceness 0"
        return (
            f"workers have niceness {niceness}, so other programs go first, and steps take tens of times as long on a "
            "busy machine: start the cluster with RAY_worker_niceness=0 in the environment of `ray start`"
        )

    def allocate(self, spec: ArraysSpec) -> FleetArrays:
        """Allocate the arrays in shared memory."""
        self._spec, arrays = spec, super().allocate(spec)
        for process in self.processes:
            if process.far is not None:
                process.far.attach(spec, self._arrays.map(spec.block.size_bytes))
        return arrays

    def ring(self, worker: int) -> None:
        """Wake a worker that sleeps, or send it what it is asked."""
        far = self.processes[worker].far
        if far is not None:
            far.ring()
        else:
            super().ring(worker)

    def replace(self, worker: int, plan: GroupPlan) -> None:
        """Have Ray place another worker, wherever there is room now.

        Raises:
            EnvfleetError: Ray was shut down, or its head is gone.
        """
        cluster.require_head(self._session)
        for peer in self.processes[worker].peers:
            self._poller.forget(peer.fileno())
        super().replace(worker, plan)

    def close(self, timeout_s: float) -> None:
        """Wait for workers that were asked to close, end the others, release everything; idempotent."""
        try:
            super().close(timeout_s)
        finally:
            self._invited.clear()
            self._held.close()
