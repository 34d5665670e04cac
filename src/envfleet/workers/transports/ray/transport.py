"""Workers that Ray places, each supervised by an actor: on the driver's machine over its memory, elsewhere over TCP."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import secrets
import select
import socket
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from envfleet.errors import EnvfleetError, InvalidArgument, WorkersUnplaced
from envfleet.fleet.checks import check_seconds
from envfleet.options import Options
from envfleet.workers.arrays import ArraysSpec, FleetArrays
from envfleet.workers.board import ASKED, DONE
from envfleet.workers.messages import GroupPlan
from envfleet.workers.serve import Place
from envfleet.workers.transports.far import FarWorker, Link
from envfleet.workers.transports.process import ProcessTransport
from envfleet.workers.transports.ray import cluster
from envfleet.workers.transports.ray.actor import Invitation, RayWorker
from envfleet.workers.transports.ray.handle import ANSWER_S, LOOK_S, RayHandle
from envfleet.workers.transports.socket import WELCOME, Connection, Greeting, Listener, enable_keepalive

_OF_ACTORS = frozenset({"num_cpus", "num_gpus", "resources", "memory", "scheduling_strategy", "runtime_env"})
_OURS: dict[str, Any] = {"shared_memory": True, "place_timeout_s": None, "network_timeout_s": 30.0, "port": None}


_PLACE_S, _PLACE_EACH_S = 60.0, 3.0  # a core starts about one of Ray's processes per second
_PROGRESS_S, _MANY = 10.0, 8
_PORT, _LAST_PORT = "ENVFLEET_RAY_PORT", 65535


class Settings(NamedTuple):
    """Options that are not Ray's.

    Attributes:
        place_s: Seconds for Ray to place workers.
        progress_s: Seconds that are left at least whenever a worker was placed.
        shared_memory: True if workers on this machine may map the memory of this process.
        timeout_s: Silence of a node after which its workers are given up.
        ports: Ports of which the first free one is listened at; 0 is any.
    """

    place_s: float
    progress_s: float
    shared_memory: bool
    timeout_s: float
    ports: Sequence[int]


def make_ray(options: Options, plans: Sequence[GroupPlan], shared: dict[str, Any]) -> RayTransport:
    """Run sub-environments in workers that Ray places.

    Raises:
        InvalidArgument: `ray_options` has something unknown or impossible.
    """
    actor_options = dict(options.ray_options or {})
    unknown = sorted(actor_options.keys() - _OF_ACTORS - _OURS.keys())
    if unknown:
        raise InvalidArgument(
            f"ray_options has {unknown}, expected some of {sorted(_OF_ACTORS | _OURS.keys())}: check the spelling; a "
            "placement group goes into Ray's PlacementGroupSchedulingStrategy"
        )
    shared_memory, limit_s, network_s, port = (actor_options.pop(name, value) for name, value in _OURS.items())
    progress_s = 0.0
    if limit_s is None:
        limit_s, progress_s = _PLACE_S + _PLACE_EACH_S * len(plans), _PLACE_S
    check_seconds("ray_options['place_timeout_s']", limit_s)
    check_seconds("ray_options['network_timeout_s']", network_s)
    ports = read_ports("ray_options['port']", port) if port else read_ports(_PORT, os.environ.get(_PORT, "0"))
    try:
        ray.remote(RayWorker).options(**actor_options)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"ray_options={actor_options}: {error}: pass what Ray's actors take") from error
    settings = Settings(limit_s, progress_s, shared_memory=shared_memory, timeout_s=network_s, ports=ports)
    return RayTransport(plans, shared, actor_options, settings)


def read_ports(name: str, value: Any) -> range:
    """Return ports from a number, from `"7000-7010"`, or from a pair of the first and the last.

    Raises:
        InvalidArgument: It has another form, or a number is not from 0 to 65535.
    """
    first, last = value if isinstance(value, tuple) and len(value) == 2 else (str(value).partition("-")[::2])
    try:
        ports = range(int(first), int(last or first) + 1)
    except ValueError:
        ports = range(0)
    if not ports or ports[0] < 0 or ports[-1] > _LAST_PORT:
        raise InvalidArgument(
            f"{name} is {value!r}: pass a port such as 7000, or the first and the last of several, (7000, 7010) or "
            "'7000-7010', one for each fleet at a time"
        )
    return ports


def _open_server(host: str, ports: Sequence[int]) -> socket.socket:
    """Listen at the first port that is free.

    Raises:
        EnvfleetError: None is.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in ports:
        try:
            return socket.create_server((host, port), family=family)
        except OSError as error:
            failure = error
    raise EnvfleetError(
        f"the driver cannot listen at {host}, port {ports[0]} to {ports[-1]} ({failure}): each fleet needs a port of "
        f"its own, so allow more of them by ray_options={{'port': (first, last)}} or {_PORT}"
    ) from failure


class RayTransport(ProcessTransport):
    """Workers that Ray places; see `Transport`.

    Args:
        plans: One per worker.
        shared: The fleet's shared data by name.
        actor_options: Options of the actors, such as the resources of each.
        settings: Options that are not Ray's.
    """

    def __init__(
        self, plans: Sequence[GroupPlan], shared: dict[str, Any], actor_options: dict[str, Any], settings: Settings
    ) -> None:
        self._actor_options, self._shared = actor_options, shared
        self._limit_s, self._settings = settings.place_s, settings
        self._held = contextlib.ExitStack()
        self._invited: dict[int, int] = {}  # workers that have yet to connect, by number
        self._numbers: dict[int, int] = {}  # of all workers; their connections have twice that as tickets, or one more
        self._counter, self._left_s, self._key = itertools.count(), 0.0, secrets.token_bytes(32)
        self._num_far = self._num_looks = 0
        self._has_warned = False
        self._actor: Any = None  # one that can start another worker
        self._spec: ArraysSpec | None = None
        self._shared_ref: Any = None
        super().__init__(plans, shared, are_children=False)
        self.processes: list[RayHandle] = []  # type: ignore[assignment]  # and nothing else
        self.waiter.sleep = self._sleep

    # ----------------------------------------------------------------------------------------------- placing

    def start(self, timeout_s: float) -> None:
        """Have Ray place all workers, within `place_timeout_s`.

        Raises:
            EnvfleetError: A cluster is missing and cannot be started, or this process cannot use it.
            WorkersUnplaced: Ray did not find a place for every worker.
        """
        self._held.enter_context(cluster.cluster.held())
        self._session = cluster.session()
        self._actor_options = {"num_cpus": 0 if cluster.cluster.is_own else 1, **self._actor_options}
        self._listen()
        try:
            super().start(timeout_s)
            start_s = shown_s = time.monotonic()
            while self._invited:
                self._sleep(LOOK_S)
                if len(self._plans) > _MANY and time.monotonic() - shown_s > _PROGRESS_S:
                    shown_s, num_placed = time.monotonic(), len(self._plans) - len(self._invited)
                    took_s = f"{shown_s - start_s:.0f} s (limit {self._limit_s:.0f} s)"
                    print(f"Ray has placed {num_placed} of {len(self._plans)} workers after {took_s}", file=sys.stderr)  # noqa: T201
        except BaseException:
            self._give_up()
            raise

    def _listen(self) -> None:
        """Have workers connect, those of this machine and others."""
        host, self._path = ray.util.get_node_ip_address(), ""
        servers = [_open_server(host, self._settings.ports)]
        if self._settings.shared_memory and sys.platform == "linux":
            self._path = f"\0envfleet-{secrets.token_hex(16)}"  # of no file that could be left behind
            servers.append(socket.socket(socket.AF_UNIX))
            servers[1].bind(self._path)
            servers[1].listen()
        for server in servers:
            self._held.callback(Listener(server, self._key, self._poller, self._welcome).close)
        self._address = host, servers[0].getsockname()[1]

    def _launch(self, plan: GroupPlan) -> RayHandle:
        """Let an actor connect, some time later: that of an ended worker, or a new one."""
        actor, self._actor = self._actor, None
        if actor is None:
            actor_class: Any = ray.remote(RayWorker)  # Ray types actors by what no remote call returns
            actor = actor_class.options(**self._actor_options, max_concurrency=5, max_restarts=0).remote()
        number, self._left_s = next(self._counter), self._limit_s
        self._invited[number] = self._numbers[number] = plan.worker
        control, data = (
            Link(self._address, self._key, 2 * number + is_data, self._settings.timeout_s) for is_data in (0, 1)
        )
        return RayHandle(actor, Invitation(self._path, control, data, sys.path), self._settings.timeout_s)

    def _welcome(self, greeting: Greeting, peer: socket.socket, proof: bytes) -> None:
        """Take in a connection of a process that holds the key: a new worker's, or one that replaces a lost one."""
        number, is_data = divmod(greeting.ticket, 2)
        worker = self._numbers.get(number)
        if worker is None:  # it was given up
            peer.close()
            return
        process, is_near = self.processes[worker], peer.family == socket.AF_UNIX
        connection = process.far.data if is_data and process.far is not None else None if is_data else process.control
        answer = WELCOME.pack(proof, connection.num_read if connection else 0)
        fds = self._places[worker][1] if is_near else []
        with contextlib.suppress(OSError):  # if it is gone, that is noticed later
            if is_near:
                socket.send_fds(peer, [answer], fds)
            else:
                peer.send(answer)
        if connection is not None:
            self._resume(process, connection, peer, greeting.num_read)
        elif is_near:
            process.lifeline = peer
            self._poller.watch(process.sentinel, process.has_ended)
            self._begin(number, process)
        elif is_data:
            self._reach(process, self._places[worker][0], peer)
            self._begin(number, process)
        else:
            enable_keepalive(peer, self._settings.timeout_s)
            process.control = Connection(peer)

    def _begin(self, number: int, process: RayHandle) -> None:
        """Have the worker of an actor that has connected started."""
        worker = self._invited.pop(number)
        self._left_s = max(self._left_s, self._settings.progress_s)
        process.start(self._places[worker][0], None if process.far is None else self._shared_ref)
        self._num_far = sum(process.far is not None for process in self.processes)
        num_slow = sum(process.is_slow for process in self.processes)
        near, far = len(self.processes) - self._num_far, self._num_far - num_slow
        ways = {"shared memory": near, "TCP": far, "actor calls": num_slow}
        self.note = ", ".join(f"{count} by {way}" for way, count in ways.items() if count)

    def _reach(self, process: RayHandle, place: Place, peer: socket.socket) -> None:
        """Begin to talk to a worker elsewhere, and have the fleet's shared data in Ray's object store for it."""
        if peer.family != socket.AF_UNIX:
            enable_keepalive(peer, self._settings.timeout_s)
        data, worker = Connection(peer, process.is_lost_now), place.worker
        far = process.far = FarWorker(data, self.lines[worker], place, self.requests, self.replies[worker])
        self._watch(process)
        self.waiter.never_awake()  # nothing is seen of it otherwise
        if self._spec is not None:
            far.attach(self._spec, self._arrays.map(self._spec.block.size_bytes))
        far.ring()
        if self._shared and self._shared_ref is None:
            self._shared_ref = ray.put(self._shared)

    def _watch(self, process: RayHandle) -> None:
        if process.far is not None and process.control is not None:
            self._poller.watch(process.far.data.fd, functools.partial(self._take_results, process.far))
            self._poller.watch(process.control.fd, functools.partial(self._hear, process))

    def _resume(self, process: RayHandle, connection: Connection, peer: socket.socket, num_confirmed: int) -> None:
        """Continue on a new connection of a worker that is known."""
        self._forget(process)
        enable_keepalive(peer, self._settings.timeout_s)
        connection.resume(peer, num_confirmed)
        process.hear()
        self._watch(process)

    def _forget(self, process: RayHandle) -> None:
        self._poller.forget(process.sentinel)
        if process.far is not None:
            self._poller.forget(process.far.data.fd)

    def _take_results(self, far: FarWorker) -> bool:
        if far.take_results():  # the worker connects again, or its guard reports its end
            self._poller.forget(far.data.fd)
        return False

    def _hear(self, process: RayHandle) -> bool:
        is_over = process.hear()
        if process.control is None or process.control.is_over:
            self._poller.forget(process.sentinel)
        if is_over and process.far is not None:
            process.far.take_results()  # its last ones, which may have come since
        return is_over

    def _sleep(self, timeout_s: float) -> bool:
        if not self._invited and not self._num_far:
            return self._poller.sleep(timeout_s)
        start_s = time.monotonic()
        far = [process for process in self.processes if process.far is not None and not process.is_reported]
        if not self._invited and any(process.has_ended_before for process in far):
            self._poller.sleep(0.0)
            return True  # until `ended` was called, since a wait that ends just now ignores it
        is_short = bool(self._invited) or any(process.is_quiet() for process in far)
        needs_attention = self._poller.sleep(min(timeout_s, LOOK_S) if is_short else timeout_s)
        took_s = time.monotonic() - start_s
        if self._invited:
            self._left_s -= took_s  # only while a caller looks
            try:
                self._check_invited()
            except BaseException:
                self._give_up()
                raise
        for process in far:
            if process.is_quiet() and process.is_lost_now():
                needs_attention = True
        if took_s >= timeout_s:  # the caller will then check them
            self._look()
        return needs_attention

    def _look(self) -> None:
        """Ask the guards of busy workers where these are, all at once, and wait a little for the answers."""
        pairs = zip(self.lines, self.processes, strict=True)
        busy = [one for line, one in pairs if one.far is not None and line[DONE] != line[ASKED] and not one.is_quiet()]
        self._num_looks += 1
        for process in busy:
            process.look(self._num_looks)
        deadline_s = time.monotonic() + ANSWER_S
        while left := [one for one in busy if one.answered < self._num_looks and not one.is_quiet()]:
            left_s, poll = deadline_s - time.monotonic(), select.poll()
            if left_s <= 0:
                break
            for process in left:
                poll.register(process.sentinel, select.POLLIN)
            poll.poll(left_s * 1000)
            for process in left:
                process.hear()

    def _check_invited(self) -> None:
        cluster.require_head(self._session)
        left = {self.processes[worker].settled: number for number, worker in self._invited.items()}
        answered, _ = ray.wait(list(left), num_returns=len(left), timeout=0)
        reason: str | None = None
        for outcome in answered:
            number = left.pop(outcome)
            try:
                self._begin_by_calls(number, ray.get(outcome))
            except RayError as error:
                if not self.processes[self._numbers[number]].has_lost_node():
                    left, reason = {outcome: number}, str(error)
                    break
                self._place_again(number)
        if left and (reason is not None or self._left_s <= 0):
            resources = cluster.describe_request(self._actor_options)
            workers = [self._numbers[number] for number in left.values()]
            raise WorkersUnplaced(workers, len(self._plans), self._limit_s, resources, cluster.describe(), reason)

    def _place_again(self, number: int) -> None:
        """Have another actor placed, since the node of one has died before it could connect.

        Ray places actors on a dead node until it notices its death, which takes 10 seconds or more.
        """
        worker, left_s = self._invited.pop(number), self._left_s
        del self._numbers[number]
        self.processes[worker].close()
        self.processes[worker] = self._launch(self._plans[worker])
        self._left_s = left_s

    def _begin_by_calls(self, number: int, reason: str) -> None:
        """Have a worker started that cannot connect."""
        process = self.processes[self._numbers[number]]
        control, data = process.dig()
        process.control = Connection(control)
        self._reach(process, self._places[self._numbers[number]][0], data)
        self._begin(number, process)
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"workers on other nodes cannot connect to the driver, as {reason}, so their steps go by Ray's actor "
                "calls, which take milliseconds instead of tens of microseconds: open that port for TCP; "
                f"ray_options={{'port': …}} or {_PORT} fixes it",
                RuntimeWarning,
                stacklevel=2,
            )

    def _give_up(self) -> None:
        """Stop waiting for workers that have not connected yet."""
        self._invited.clear()
        for process in self.processes:
            if not process.has_connected:
                process.kill()

    # ------------------------------------------------------------------------------------------------- working

    @property
    def remark(self) -> str:
        """Settings that speed depends on."""
        niceness = max(process.niceness for process in self.processes)
        network = f"network_timeout_s={self._settings.timeout_s:g}, driver at port {self._address[1]}"
        if niceness <= max(0, os.getpriority(os.PRIO_PROCESS, 0)):  # as this process
            return f"{network}, workers have niceness {niceness}"
        return (
            f"{network}, workers have niceness {niceness}, so other programs go first, and steps take tens of times as "
            "long on a busy machine: start the cluster with RAY_worker_niceness=0 in the environment of `ray start`"
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
        """Let the same actor start another worker, or Ray place a new actor if it has ended.

        Raises:
            EnvfleetError: Ray was shut down, or its head is gone.
        """
        cluster.require_head(self._session)
        self._forget(self.processes[worker])
        self._numbers = {number: one for number, one in self._numbers.items() if one != worker}
        self._actor = self.processes[worker].release_actor()
        try:
            super().replace(worker, plan)
        finally:
            if self._actor is not None:  # it was not used
                ray.kill(self._actor)
                self._actor = None

    def ended(self) -> list[int]:
        """Return the workers that have ended."""
        ended = super().ended()
        for worker in ended:
            self.processes[worker].is_reported = True
        return ended

    def how_ended(self, workers: Sequence[int]) -> list[tuple[int | None, str | None]]:
        """Return the exit code of each worker and a description; Ray explains all of them within one deadline."""
        unanswered = [outcome for worker in workers for outcome in self.processes[worker].unanswered()]
        if unanswered:
            ray.wait(unanswered, num_returns=len(unanswered), timeout=ANSWER_S)
        return super().how_ended(workers)

    def stacks(self, workers: Sequence[int]) -> list[str]:
        """Return the Python stacks of workers; Ray answers for all of them within one deadline."""
        unanswered = [outcome for worker in workers for outcome in self.processes[worker].ask_stack()]
        if unanswered:
            ray.wait(unanswered, num_returns=len(unanswered), timeout=ANSWER_S)
        return super().stacks(workers)

    def close(self, timeout_s: float) -> None:
        """Wait for workers that were asked to close, end the others, release everything; idempotent."""
        try:
            super().close(timeout_s)
        finally:
            self._invited.clear()
            self._held.close()
