"""What becomes of a fleet in a fork of the process that made it.

A fork copies the fleet, but not its workers: threads are not in it, and processes go on answering to the parent, whose
steps a second owner would take, and whose fleet it would close.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from envfleet.errors import EnvfleetError, FleetBroken


class Owner(Protocol):
    """Whoever has workers."""

    def disown(self, reason: EnvfleetError) -> None:
        """Leave them alone from now on."""


_owners: weakref.WeakSet[Owner] = weakref.WeakSet()


def disown_in_forks(owner: Owner) -> None:
    """Have `owner` told in every fork of this process that its workers are not its own there."""
    _owners.add(owner)


def _disown_all() -> None:
    where = f"it belongs to process {os.getppid()}, of which this one, {os.getpid()}, is a fork"
    for owner in list(_owners):
        owner.disown(FleetBroken(where))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
