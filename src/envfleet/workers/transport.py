"""The seam inside the workers engine: how a transport carries workers, whatever and wherever they are."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

from envfleet.errors import EnvfleetError
from envfleet.workers.arrays import ArraysSpec, FleetArrays
from envfleet.workers.board import Line, Waiter
from envfleet.workers.env_group import GroupPlan
from envfleet.workers.memory import Mail
from envfleet.workers.serve import Server


class Transport(ABC):
    """Workers, the words they share with their owner, and ways to start, wake, watch and end them.

    What is not abstract is that of threads of this process, which end only when they are asked to.

    Attributes:
        lines: Words of each worker.
        requests: Mail to the workers: a slot per worker, then one per row of the fleet, then the table of info columns.
        replies: Mail from each worker: one slot for whole requests, then one per row of that worker.
        waiter: How the owner waits for them.
        can_kill: Whether a worker can be ended by force.
        server: The one worker's own side, if that is the caller's thread.
        note: What the fleet's `repr` adds to the plan.
    """

    lines: list[Line]
    requests: Mail
    replies: Sequence[Mail]
    waiter: Waiter
    can_kill = False
    server: Server | None = None
    note = ""

    @abstractmethod
    def start(self, timeout_s: float) -> None:
        """Start all workers; they serve from now on. `timeout_s` is what placing them may take."""

    @abstractmethod
    def allocate(self, spec: ArraysSpec) -> FleetArrays:
        """Allocate the arrays and return all rows; workers map theirs when they are asked to attach."""

    @abstractmethod
    def ring(self, worker: int) -> None:
        """Wake a worker that sleeps."""

    @abstractmethod
    def stack(self, worker: int) -> str:
        """Return the worker's Python stack, now; from any thread."""

    @abstractmethod
    def place(self, worker: int) -> str:
        """Return where the worker runs and how data reaches it, in a few words."""

    @abstractmethod
    def close(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for workers that were asked to close, end the others by force, release everything."""

    def ended(self) -> list[int]:
        """Return the workers that have ended."""
        return []

    def how_ended(self, worker: int) -> tuple[int | None, str | None]:
        """Return how a worker ended: its exit code, as `subprocess` has it, and a description in words."""
        return None, None

    def kill(self, worker: int, grace_s: float = 0.0) -> None:
        """End a worker by force, if it can be and has not ended within `grace_s`."""
        return

    def replace(self, worker: int, plan: GroupPlan) -> None:
        """Start another worker in the place of one that has ended; it serves from the current numbers on."""
        raise EnvfleetError("a thread cannot be replaced")

    def pid(self, worker: int) -> int:
        """Return the process in which the worker runs."""
        return os.getpid()
