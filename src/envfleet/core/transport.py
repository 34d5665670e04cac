"""The seam between a fleet and the place where its groups run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from envfleet.core.arrays import ArraysSpec, FleetArrays
from envfleet.core.builders import EnvBuilder
from envfleet.core.group import GroupInfo, GroupOptions
from envfleet.core.messages import Completion, Reply, Request
from envfleet.errors import EnvfleetError, Failure


@dataclasses.dataclass(frozen=True)
class GroupPlan:
    """What a transport needs to build one group, here or elsewhere.

    Attributes:
        builders: One per sub-environment.
        options: How the group behaves.
    """

    builders: tuple[EnvBuilder, ...]
    options: GroupOptions

    @property
    def rows(self) -> range:
        """Indices in the fleet of its sub-environments."""
        return range(self.options.first_index, self.options.first_index + len(self.builders))

    def again(self, lost: str | None) -> GroupPlan:
        """The plan of the worker that takes over from this one; `lost` says why, if this one did not end in peace."""
        options = dataclasses.replace(self.options, incarnation=self.options.incarnation + 1, lost=lost)
        return GroupPlan(self.builders, options)


class Transport(Protocol):
    """Carries requests to groups and their completions back; one worker per group.

    A transport never blocks in `submit`, never waits longer than asked in `wait`, and reports a worker that ended as a
    `Completion` with `death` set, once, after everything it completed before.
    """

    name: str
    num_workers: int

    @property
    def step_here(self) -> Callable[[int], Reply | None] | None:
        """Steps all sub-environments (given the generation) where the one worker is the caller; else `None`.

        The same as `submit` of a plain `STEP`, without the messages. It raises `InvalidArgument` if actions are not in
        the range of their space; nothing was stepped then.
        """
        ...

    def start(self, timeout_s: float) -> list[GroupInfo]:
        """Start the workers and build their groups.

        Raises:
            SubEnvError: A sub-environment could not be built.
            WorkerDied: A worker ended while building.
            StartTimeout: Not all were built within `timeout_s`.
        """
        ...

    def attach(self, spec: ArraysSpec) -> FleetArrays:
        """Allocate the arrays and give every group its own.

        Raises:
            OutOfMemory: They do not fit.
        """
        ...

    def rows_view(self, rows: slice) -> FleetArrays:
        """The fleet's arrays restricted to `rows`."""
        ...

    def submit(self, worker: int, request: Request) -> Sequence[Completion]:
        """Hand a request to a worker; returns what is completed by that alone, where the worker is the caller."""
        ...

    def wait(self, timeout_s: float | None) -> Sequence[Completion]:
        """Completions in the order they came; at least one unless `timeout_s` passes first."""
        ...

    def restart(self, worker: int, lost: str | None, timeout_s: float) -> None:
        """Replace a worker by a new one.

        Args:
            worker: Which.
            lost: Why the old one ended: the new sub-environments answer their first step as truncated for that reason.
                `None` if it still runs, idle: it is asked to close first.
            timeout_s: Limit for the new one to be built.
        """
        ...

    def can_look(self, worker: int) -> bool:
        """Whether a worker's progress line tells where it is now; not while nobody can be asked for it."""
        ...

    def interrupt(self, worker: int) -> None:
        """Ask a worker to give up the sub-environment named in its progress line."""
        ...

    def kill(self, worker: int, why: EnvfleetError) -> None:
        """End a worker by force; `why` becomes the `death` of its completion."""
        ...

    def stack(self, worker: int) -> str:
        """The worker's Python stack, now."""
        ...

    def pid(self, worker: int) -> int:
        """Process in which the worker runs."""
        ...

    def place(self, worker: int) -> str:
        """Where the worker runs and which way data takes, in a few words."""
        ...

    @property
    def note(self) -> str:
        """What there is to say of all workers that the plan does not tell; shown by the fleet."""
        ...

    def close(self, timeout_s: float) -> list[Failure]:
        """End all workers: ask, wait up to `timeout_s`, then force; returns what their sub-environments raised."""
        ...
