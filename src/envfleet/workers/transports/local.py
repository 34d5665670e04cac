"""Base class of transports within this process, with all memory on the heap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from envfleet.workers.arrays import ArraysSpec, FleetArrays
from envfleet.workers.board import Waiter, lines_of
from envfleet.workers.memory import HeapMail
from envfleet.workers.messages import GroupPlan
from envfleet.workers.serve import Place, WorkerContext
from envfleet.workers.transport import Transport


class LocalTransport(Transport):
    """Workers in threads of this process; see `Transport`.

    Args:
        plans: Plan of each worker.
        shared: The fleet's shared data by name.
    """

    def __init__(self, plans: Sequence[GroupPlan], shared: Mapping[str, NDArray[Any]]) -> None:
        self._plans, self._shared, count = plans, shared, len(plans)
        *self.lines, self._owner = lines_of(bytearray, count)
        self.requests: HeapMail = HeapMail()
        self.replies: list[HeapMail] = [HeapMail() for _ in plans]
        self._blocks: list[Any] = []  # the arrays, once they are allocated

    def _context_of(
        self, plan: GroupPlan, waiter: Waiter, ring: Callable[[], None], *, is_inline: bool = False
    ) -> WorkerContext:
        blocks = self._blocks  # not `self`, which would make a cycle where the transport holds the server
        return WorkerContext(
            place=Place(plan.worker, len(self._plans), plan.rows, self._plans[-1].rows.stop, {}),
            lines=self.lines,
            owner=self._owner,
            requests=self.requests,
            replies=self.replies[plan.worker],
            waiter=waiter,
            ring=ring,
            map_arrays=lambda spec: FleetArrays(spec, blocks[0], slice(plan.rows.start, plan.rows.stop)),
            shared=self._shared,
            is_inline=is_inline,
        )

    def allocate(self, spec: ArraysSpec) -> FleetArrays:
        """Allocate the arrays on the heap."""
        self._blocks.append(spec.block.allocate())
        return FleetArrays(spec, self._blocks[0])

    def close(self, timeout_s: float) -> None:
        """Drop the mail, which may contain sub-environments, and tracebacks that refer to the fleet."""
        for mail in (self.requests, *self.replies):
            mail.clear()
