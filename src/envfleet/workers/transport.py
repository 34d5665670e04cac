"""Interface of transports, which start workers, wake them and detect their end."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

from envfleet.errors import EnvfleetError
from envfleet.workers.arrays import ArraysSpec, FleetArrays
from envfleet.workers.board import Line, Waiter
from envfleet.workers.memory import Mail
from envfleet.workers.messages import GroupPlan
from envfleet.workers.serve import Server


class Transport(ABC):
    """Workers, the words they share with their owner, and methods to start, wake, watch and end them.

    Methods that are not abstract suit threads of this process, which end only when they are asked to.

    Attributes:
        lines: Words of each worker.
        requests: Mail to the workers: a slot per worker, then one per row of the fleet, then the table of info columns.
        replies: Mail from each worker: one slot for whole requests, then one per row of that worker.
        waiter: Waits of the owner.
        can_kill: True if a worker can be killed.
        server: Loop of the only worker, if it runs in the caller's thread.
        note: Text that the fleet's `repr` adds to the plan.
    """

    lines: list[Line]
    requests: Mail
    replies: Sequence[Mail]
    waiter: Waiter
    can_kill = False
    server: Server | None = None
    note = ""

    @property
    def remark(self) -> str:
        """Text about the started workers that is added to the plan's reason."""
        return ""

    @abstractmethod
    def start(self, timeout_s: float) -> None:
        """Start all workers, which then serve requests. `timeout_s` limits the time to place them."""

    @abstractmethod
    def allocate(self, spec: ArraysSpec) -> FleetArrays:
        """Allocate the arrays and return all rows; workers map theirs on the request to attach."""

    @abstractmethod
    def ring(self, worker: int) -> None:
        """Wake a sleeping worker."""

    @abstractmethod
    def stack(self, worker: int) -> str:
        """Return the worker's current Python stack. Any thread may call this."""

    def stacks(self, workers: Sequence[int]) -> list[str]:
        """Return the current Python stacks of several workers. Any thread may call this."""
        return [self.stack(worker) for worker in workers]

    @abstractmethod
    def place(self, worker: int) -> str:
        """Return a short description of the worker's machine and of the connection."""

    @abstractmethod
    def close(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for workers that were asked to close, kill the others, release everything."""

    def ended(self) -> list[int]:
        """Return the workers that have ended."""
        return []

    def how_ended(self, workers: Sequence[int]) -> list[tuple[int | None, str | None]]:
        """Return the exit code of each worker, as in `subprocess`, and a description of its end."""
        return [(None, None)] * len(workers)

    def kill(self, worker: int, grace_s: float = 0.0) -> None:
        """Kill a worker, if that is possible and it has not ended within `grace_s`."""
        return

    def replace(self, worker: int, plan: GroupPlan) -> None:
        """Start a successor of a worker that has ended; it continues with the current request numbers."""
        raise EnvfleetError("a thread cannot be replaced")

    def pid(self, worker: int) -> int:
        """Return the id of the worker's process."""
        return os.getpid()
