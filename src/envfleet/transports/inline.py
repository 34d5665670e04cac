"""The serial backend: the groups live in the caller's thread and run when asked."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from envfleet.core.alarms import borrowed_alarm
from envfleet.core.arrays import ArraysSpec, FleetArrays, PlaceWord
from envfleet.core.env_group import EnvGroup
from envfleet.core.failures import StepInterrupted
from envfleet.core.group import GroupInfo
from envfleet.core.layout import SpaceLayout
from envfleet.core.messages import Completion, Reply, Request, Verb
from envfleet.core.serve import Server
from envfleet.core.transport import GroupPlan
from envfleet.errors import EnvfleetError, Failure, InvalidArgument


class InlineTransport:
    """Runs one group where the fleet is.

    Args:
        plans: Exactly one.
        shared: The fleet's shared data by name.
        step_timeout_s: Deadline of a sub-environment's step, held by an interval timer of the main thread.

    Raises:
        InvalidArgument: A deadline was asked for outside the main thread, where no timer can interrupt.
    """

    name = "serial"

    def __init__(
        self, plans: Sequence[GroupPlan], shared: Mapping[str, Any], step_timeout_s: float | None = None
    ) -> None:
        if step_timeout_s is not None and threading.current_thread() is not threading.main_thread():
            raise InvalidArgument(
                f'step_timeout_s={step_timeout_s:g} with backend="serial" works in the main thread only: '
                'use backend="process"'
            )
        self._plan, self._shared, self._step_timeout_s = plans[0], shared, step_timeout_s
        self.num_workers = 1
        self._group: EnvGroup | None = None
        self._done: list[Completion] = []

    def start(self, timeout_s: float) -> list[GroupInfo]:
        """Build the group here."""
        group = EnvGroup(self._plan.builders, self._plan.options, self._shared)
        self._group = group
        self._server = Server(group, 0, self._plan.options.first_index, self._complete)
        return [group.describe()]

    def attach(self, spec: ArraysSpec) -> FleetArrays:
        """Allocate the arrays in this process."""
        self._spec, self._buffer = spec, spec.block_layout().allocate()
        arrays = FleetArrays.bind(spec, self._buffer)
        self._server.group.attach(arrays, (SpaceLayout(spec.observation_space), SpaceLayout(spec.action_space)))
        self._progress = arrays.progress[0]
        return arrays

    def rows_view(self, rows: slice) -> FleetArrays:
        """The arrays restricted to `rows`."""
        return FleetArrays.bind(self._spec, self._buffer, rows)

    def _complete(self, seq: int, row: int, reply: Reply | None) -> None:
        self._done.append(Completion(0, seq, row, reply))

    def submit(self, worker: int, request: Request) -> Sequence[Completion]:
        """Carry the request out now."""
        if self._step_timeout_s is None:
            self._server.handle(request)
        else:
            with self._deadline(self._step_timeout_s):
                self._server.handle(request)
        done, self._done = self._done, []
        return done

    @property
    def step_here(self) -> Callable[[int], Reply | None] | None:
        """A plain step without messages; not where a deadline has to be watched."""
        return self._server.step_here if self._step_timeout_s is None else None

    def wait(self, timeout_s: float | None) -> Sequence[Completion]:
        """Nothing: what is submitted is completed at once."""
        return ()

    @contextlib.contextmanager
    def _deadline(self, timeout_s: float) -> Iterator[None]:
        """Interrupt a sub-environment that stays in one step or reset longer than `timeout_s`; not its constructor."""
        seen, seen_s = 0, 0.0

        def look(signum: int, frame: Any) -> None:
            nonlocal seen, seen_s
            place, now = PlaceWord.place(self._progress), time.monotonic()
            if place == 0 or place != seen:
                seen, seen_s = place, now
            elif now - seen_s >= timeout_s and not PlaceWord.is_building(self._progress, place):
                raise StepInterrupted

        look_s = max(timeout_s / 4, 0.005)
        with borrowed_alarm(look) as set_timer:
            set_timer(look_s, look_s)
            yield

    def restart(self, worker: int, lost: str | None, timeout_s: float) -> None:
        """Never needed: the caller's thread does not end on its own."""

    def can_look(self, worker: int) -> bool:
        """Always: it runs in the caller's thread."""
        return True

    def interrupt(self, worker: int) -> None:
        """Never needed: the timer interrupts."""

    def kill(self, worker: int, why: EnvfleetError) -> None:
        """Never needed: the timer interrupts."""

    def stack(self, worker: int) -> str:
        """The stacks of this process's threads."""
        return "".join(
            f"thread {ident}:\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sys._current_frames().items()  # noqa: SLF001 - how the standard library offers it
        )

    def place(self, worker: int) -> str:
        """This thread."""
        return "this thread"

    @property
    def note(self) -> str:
        """Nothing: the plan says it all."""
        return ""

    def pid(self, worker: int) -> int:
        """This process."""
        return os.getpid()

    def close(self, timeout_s: float) -> list[Failure]:
        """Close the sub-environments."""
        if self._group is None:
            return []
        self._server.handle(Request(Verb.CLOSE, 0, payload=timeout_s))
        reply = self._done.pop().reply
        return reply.failures if reply is not None else []
