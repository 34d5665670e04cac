"""The seam inside the workers engine: how a transport carries workers, whatever and wherever they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from envfleet.workers.arrays import ArraysSpec, FleetArrays
from envfleet.workers.board import Line, Waiting
from envfleet.workers.env_group import GroupPlan
from envfleet.workers.memory import Mail
from envfleet.workers.serve import Server


class Transport(Protocol):
    """Workers, the words they share with their owner, and ways to start, wake, watch and end them.

    Attributes:
        lines: Words of each worker.
        requests: Mail to the workers: a slot per worker, then one per row of the fleet, then the table of info columns.
        replies: Mail from each worker: one slot for whole requests, then one per row of its own.
        waiting: How the owner waits for them.
        can_kill: Whether a worker can be ended by force.
        server: The one worker's own side, if that is the caller's thread.
        note: What the fleet's `repr` adds to the plan.
    """

    lines: list[Line]
    waiting: Waiting
    can_kill: bool
    server: Server | None
    note: str

    @property
    def requests(self) -> Mail: ...  # noqa: D102
    @property
    def replies(self) -> Sequence[Mail]: ...  # noqa: D102

    def start(self, timeout_s: float) -> None:
        """Start all workers; they serve from now on. `timeout_s` is what placing them may take."""
        ...

    def allocate(self, spec: ArraysSpec) -> FleetArrays:
        """Allocate the arrays and return all rows; workers map theirs when they are asked to attach."""
        ...

    def ring(self, worker: int) -> None:
        """Wake a worker that sleeps."""
        ...

    def ended(self) -> list[int]:
        """Return the workers that have ended."""
        ...

    def how_ended(self, worker: int) -> tuple[int | None, str | None]:
        """Return how a worker ended: its exit code, as `subprocess` has it, and what is known besides, in words."""
        ...

    def kill(self, worker: int) -> None:
        """End a worker by force."""
        ...

    def replace(self, worker: int, plan: GroupPlan) -> None:
        """Start another worker in the place of one that has ended; it serves from the current numbers on."""
        ...

    def stack(self, worker: int) -> str:
        """Return the worker's Python stack, now; from any thread."""
        ...

    def pid(self, worker: int) -> int:
        """Return the process in which the worker runs."""
        ...

    def place(self, worker: int) -> str:
        """Return where the worker runs and how data reaches it, in a few words."""
        ...

    def close(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for workers that were asked to close, end the others by force, release everything."""
        ...
