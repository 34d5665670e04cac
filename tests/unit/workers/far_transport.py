"""Workers of this machine that are reached over TCP as those of other machines are, without Ray."""

from __future__ import annotations

import functools
import socket
from collections.abc import Sequence
from typing import Any

from envfleet.workers.arrays import ArraysSpec, FleetArrays
from envfleet.workers.messages import GroupPlan
from envfleet.workers.transports.far import FarWorker, start_far_worker
from envfleet.workers.transports.launch import WorkerProcess
from envfleet.workers.transports.process import ProcessTransport
from envfleet.workers.transports.socket import Connection


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


class FarTransport(ProcessTransport):
    num_near = 0

    def __init__(self, plans: Sequence[GroupPlan], shared: dict[str, Any]) -> None:
        self._shared = shared
        self.far: dict[int, FarWorker] = {}
        self._spec: ArraysSpec | None = None
        self._lifelines: dict[int, socket.socket] = {}
        super().__init__(plans, shared)

    def _launch(self, plan: GroupPlan) -> WorkerProcess:
        worker = plan.worker
        if worker < self.num_near:
            process: Any = super()._launch(plan)
        else:
            (lifeline, one), (data, other) = tcp_pair(), tcp_pair()
            place, _ = self._places[worker]
            process, _ = start_far_worker(place, [one.fileno(), other.fileno()], self._shared)
            one.close()
            other.close()
            self._lifelines[worker] = lifeline
            far = FarWorker(Connection(data), self.lines[worker], place, self.requests, self.replies[worker])
            self.far[worker] = far
            self._poller.watch(far.data.fd, functools.partial(self._take, far))
            self.waiter.never_awake()
            if self._spec is not None:
                far.attach(self._spec, self._arrays.map(self._spec.block.size_bytes))
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


class MixedTransport(FarTransport):
    """The first worker shares memory, the others do not."""

    num_near = 1
