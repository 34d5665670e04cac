"""Workers as processes of this machine, over shared memory."""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from envfleet.errors import StartTimeout
from envfleet.machine import whole_cores
from envfleet.workers import board
from envfleet.workers.arrays import ArraysSpec, FleetArrays
from envfleet.workers.memory import FileMail, NamelessFile
from envfleet.workers.messages import GroupPlan
from envfleet.workers.serve import Place
from envfleet.workers.shared import form_of, put_shared
from envfleet.workers.transport import Transport
from envfleet.workers.transports.launch import WorkerProcess, close_fds, explain_start, server
from envfleet.workers.transports.preload import find_modules

_END_S = 2.0


class WorkerHandle(Protocol):
    """Handle of a worker in `ProcessTransport`; see `WorkerProcess`."""

    @property
    def sentinel(self) -> int: ...  # noqa: D102
    @property
    def pid(self) -> int: ...  # noqa: D102
    @property
    def place(self) -> str: ...  # noqa: D102
    def has_started(self, timeout_s: float) -> bool: ...  # noqa: D102
    def has_ended(self, timeout_s: float = 0.0) -> bool: ...  # noqa: D102
    def how_ended(self) -> tuple[int | None, str | None]: ...  # noqa: D102
    def stack(self) -> str: ...  # noqa: D102
    def kill(self) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class ProcessTransport(Transport):
    """Worker processes; see `Transport`.

    Args:
        plans: Plan of each worker.
        shared: The fleet's shared data by name.
        are_children: True if this process starts the workers.

    Attributes:
        processes: The workers.
    """

    can_kill = True

    def __init__(
        self, plans: Sequence[GroupPlan], shared: Mapping[str, NDArray[Any]], *, are_children: bool = True
    ) -> None:
        self._plans, self._form = list(plans), form_of(shared) if shared else {}
        self._modules: list[str] = []
        self._num_envs = plans[-1].rows.stop
        self.processes: list[WorkerHandle] = []
        self._fds: list[int] = []
        self._closer = weakref.finalize(self, close_fds, self._fds)
        self._files: list[NamelessFile] = []
        self._poller = board.Poller()
        self._stack_lock = threading.Lock()
        try:
            if are_children:
                server.warm_up()  # it imports while the rest is prepared
                self._modules = find_modules([builder for plan in plans for builder in plan.builders])
            self._open(shared)
            if are_children:
                server.branch(self._modules)
        except OSError as error:
            self.close(0.0)
            raise explain_start(error) from error
        except BaseException:
            self.close(0.0)
            raise

    def _open(self, shared: Mapping[str, NDArray[Any]]) -> None:
        count = len(self._plans)
        self._files += [NamelessFile() for _ in range(4 + count)]
        board_file, self._arrays, requests, self._stacks, *replies = self._files
        *self.lines, owner = board.lines_of(board_file.allocate, count)
        fcntl.fcntl(self._stacks.fd, fcntl.F_SETFL, fcntl.fcntl(self._stacks.fd, fcntl.F_GETFL) | os.O_APPEND)
        self.requests: FileMail = FileMail(requests.fd, count + self._num_envs + 1)
        mail = zip(replies, self._plans, strict=True)
        self.replies: list[FileMail] = [FileMail(file.fd, 1 + len(plan.rows)) for file, plan in mail]
        if self._form:
            self._files.append(put_shared(shared))
        for _ in range(1 + count):
            self._fds += os.pipe()
            os.set_blocking(self._fds[-1], False)
        bell, to_owner, *to_workers = self._fds
        self._worker_bells = to_workers[1::2]
        self._places: list[tuple[Place, list[int]]] = []  # what `process_worker.run` takes
        for plan, file, own_bell in zip(self._plans, replies, to_workers[::2], strict=True):
            files = (board_file, self._arrays, requests, file, self._stacks)
            fds = [*(one.fd for one in files), own_bell, to_owner, *(one.fd for one in self._files[4 + count :])]
            self._places.append((Place(plan.worker, count, plan.rows, self._num_envs, self._form), fds))
        self._poller.watch(bell)
        spin_ns = board.OWNER_SPIN_NS if count < whole_cores() else 0
        self.waiter = board.Waiter(
            owner, owner, self._poller.sleep, spin_ns=spin_ns, spin_policy=board.SpinPolicy(owner)
        )

    def start(self, timeout_s: float) -> None:
        """Start all workers."""
        deadline_s = time.monotonic() + timeout_s
        for plan in self._plans:
            process = self._launch(plan)
            self.processes.append(process)
            if not process.has_started(deadline_s - time.monotonic()):
                server.forget()
                raise StartTimeout(
                    [plan.worker], timeout_s, f"(modules are still imported: {', '.join(self._modules)})"
                )

    def _launch(self, plan: GroupPlan) -> WorkerHandle:
        place, fds = self._places[plan.worker]
        process = WorkerProcess(
            "envfleet.workers.transports.process_worker:run", place, fds, self._stacks, self._modules
        )
        self._poller.watch(process.sentinel, lambda: True)
        return process

    def allocate(self, spec: ArraysSpec) -> FleetArrays:
        """Allocate the arrays in shared memory."""
        return FleetArrays(spec, self._arrays.allocate(spec.block.size_bytes))

    def ring(self, worker: int) -> None:
        """Wake a sleeping worker."""
        board.ring_pipe(self._worker_bells[worker])

    def ended(self) -> list[int]:
        """Return the workers that have ended."""
        ended = [worker for worker, process in enumerate(self.processes) if process.has_ended()]
        for worker in ended:  # one end needs attention once
            self._poller.forget(self.processes[worker].sentinel)
        return ended

    def how_ended(self, workers: Sequence[int]) -> list[tuple[int | None, str | None]]:
        """Return the exit code of each worker and a description of its end."""
        return [self.processes[worker].how_ended() for worker in workers]

    def kill(self, worker: int, grace_s: float = 0.0) -> None:
        """Send SIGKILL to a worker, if it has not ended within `grace_s`."""
        process = self.processes[worker]
        if not process.has_ended(grace_s):
            process.kill()
            process.has_ended(_END_S)

    def replace(self, worker: int, plan: GroupPlan) -> None:
        """Start the successor of a worker that has ended."""
        line = self.lines[worker]
        self._poller.forget(
            self.processes[worker].sentinel
        )  # but no other one, since its end may not have been seen yet
        self.processes[worker].close()
        line[board.DONE] = line[board.ASKED]
        line[board.FLAGS] = line[board.ASLEEP] = line[board.ROW] = line[board.IS_REBUILDING] = 0
        self.processes[worker] = self._launch(plan)

    def stack(self, worker: int) -> str:
        """Return the worker's Python stack."""
        with self._stack_lock:
            return self.processes[worker].stack()

    def pid(self, worker: int) -> int:
        """Return the id of the worker's process."""
        return self.processes[worker].pid

    def place(self, worker: int) -> str:
        """Return a description of the worker's machine."""
        return self.processes[worker].place

    def close(self, timeout_s: float) -> None:
        """Wait for workers that were asked to close, kill the others, release everything; idempotent."""
        deadline_s = time.monotonic() + timeout_s
        try:
            for process in self.processes:
                if not process.has_ended(deadline_s - time.monotonic()):
                    process.kill()
        finally:
            for process in self.processes:
                process.close()
            for file in self._files:
                file.close()
            self._closer()
            self.processes, self._files = [], []
