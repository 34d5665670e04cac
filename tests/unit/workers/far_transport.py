"""Workers of this machine that are reached over TCP as those of other machines are, without Ray."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Sequence
from typing import Any

from envfleet.options import Options
from envfleet.workers.arrays import ArraysSpec, FleetArrays
from envfleet.workers.board import OWNER_LONG_NS, Waiting
from envfleet.workers.env_group import GroupPlan
from envfleet.workers.transports.far import FarWorker, start_far_worker
from envfleet.workers.transports.launch import WorkerProcess
from envfleet.workers.transports.process import ProcessTransport
from envfleet.workers.transports.socket import Connection, Poller


def make_far(plans: Sequence[GroupPlan], shared: dict[str, Any], options: Options) -> FarTransport:
    return FarTransport(plans, shared)


def make_mixed(plans: Sequence[GroupPlan], shared: dict[str, Any], options: Options) -> FarTransport:
    """The first worker shares memory, the others do not."""
    return FarTransport(plans, shared, num_near=1)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


class FarTransport(ProcessTransport):
    def __init__(self, plans: Sequence[GroupPlan], shared: dict[str, Any], *, num_near: int = 0) -> None:
        self._shared, self._num_near = shared, num_near
        self.far: dict[int, FarWorker] = {}
        self._spec: ArraysSpec | None = None
        self._lifelines: dict[int, socket.socket] = {}
        super().__init__(plans, shared)
        self._poller = Poller()
        self._poller.watch(self.bell, lambda: bool(os.read(self.bell, 4096)) and False)
        self.waiting = Waiting(self.owner, self._poller.sleep, long_ns=OWNER_LONG_NS)

    def _launch(self, plan: GroupPlan) -> WorkerProcess:
        worker = plan.worker
        if worker < self._num_near:
            process: Any = super()._launch(plan)
        else:
            (lifeline, one), (data, other) = tcp_pair(), tcp_pair()
            place, _ = self._seat(plan)
            process, _ = start_far_worker(place, [one.fileno(), other.fileno()], self._shared)
            one.close()
            other.close()
            self._lifelines[worker] = lifeline
            far = FarWorker(Connection(data), self.lines[worker], place, self.requests, self.replies[worker])
            self.far[worker] = far
            self._poller.watch(far.data.fd, functools.partial(self._take, far))
            self.waiting.never_awake()
            if self._spec is not None:
                far.attach(self._spec, self._arrays.map(self._spec.block.size_bytes))
            self._sleeper.poll.register(process.sentinel)  # as the base class expects
            far.ring()
        assert process.pid
        self._poller.watch(process.sentinel, lambda: True)
        return process

    def _take(self, far: FarWorker) -> bool:
        if far.take_results():
            self._poller.forget(far.data.fd)
        return False

    def allocate(self, spec: ArraysSpec) -> FleetArrays:
        self._spec, arrays = spec, super().allocate(spec)
        for far in self.far.values():
            far.attach(spec, self._arrays.map(spec.block.size_bytes))
        return arrays

    def ring(self, worker: int) -> None:
        if worker in self.far:
            self.far[worker].ring()
        else:
            super().ring(worker)

    def replace(self, worker: int, plan: GroupPlan) -> None:
        self._poller.forget(self.processes[worker].sentinel)
        self._let_go(worker)
        super().replace(worker, plan)

    def _let_go(self, worker: int) -> None:
        if worker in self.far:
            self._poller.forget(self.far[worker].data.fd)
            self.far.pop(worker).data.close()
            self._lifelines.pop(worker).close()

    def close(self, timeout_s: float) -> None:
        super().close(timeout_s)
        for worker in list(self.far):
            self._let_go(worker)
