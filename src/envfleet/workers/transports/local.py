"""What transports within this process have in common: arrays on the heap, and workers that cannot be lost."""

from __future__ import annotations

import os
from typing import Any, Never

from envfleet.errors import EnvfleetError
from envfleet.workers.arrays import ArraysSpec, FleetArrays
from envfleet.workers.board import board_bytes, lines_of
from envfleet.workers.env_group import GroupPlan
from envfleet.workers.memory import HeapMail, Mail


class LocalTransport:
    """Workers that are threads of this process; see `Transport`.

    Args:
        num_workers: How many.
    """

    can_kill = False
    note = ""

    def __init__(self, num_workers: int) -> None:
        *self.lines, self._owner = lines_of(bytearray(board_bytes(num_workers)), num_workers)
        self.requests: Mail = HeapMail()
        self.replies: list[Mail] = [HeapMail() for _ in range(num_workers)]
        self._block: Any = None

    def allocate(self, spec: ArraysSpec) -> FleetArrays:
        """Allocate the arrays on the heap."""
        self._block = spec.block.allocate()
        return FleetArrays(spec, self._block)

    def ended(self) -> list[int]:
        """Return no workers: threads end only when they are asked to."""
        return []

    def how_ended(self, worker: int) -> tuple[None, None]:
        """Return nothing: a thread has no exit code."""
        return None, None

    def kill(self, worker: int) -> None:
        """Do nothing: a thread cannot be ended by force."""

    def replace(self, worker: int, plan: GroupPlan) -> Never:
        """Refuse: a thread is never lost."""
        raise EnvfleetError("a thread cannot be replaced")

    def pid(self, worker: int) -> int:
        """Return this process."""
        return os.getpid()
