"""Guard of a fleet's calls: one at a time, in a state that allows it, and each leads to a known state.

Problem. A call may be interrupted at any point (Ctrl-C), may raise, may come from another thread, or from a fork of the
fleet's process. No later call may then return results of the earlier one.

Solution. A call takes the lock without waiting, and is refused if another thread has it. While it works the state is
`TORN`, which remains if nothing else is known; the engine says what an error leaves behind. In a fork every fleet
becomes `BROKEN`.

What remains. `Fleet.step` does the same in its own code, because a context manager would cost more than the checks.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Never, TypeVar

import numpy as np

from envfleet.errors import CallPending, EnvfleetError, Failure, FleetBroken, InvalidArgument
from envfleet.fleet.engine import Answer, Batch, Engine, Request, Reset, Rows
from envfleet.fleet.lifecycle import Lifecycle, refuse, refuse_busy

CLOSE_TIMEOUT_S = 10.0

RESTARTABLE = (Lifecycle.NEW, Lifecycle.READY, Lifecycle.TORN)
"""States in which all sub-environments can be reset or restored."""

Result = TypeVar("Result")

_CALLS = {"CallGuard.run": "self", "Fleet.step": "calls"}
"""Functions that run calls of a fleet, each with its variable for the guard."""


class CallGuard:
    """Lock and state of a fleet.

    Args:
        engine: Engine of the fleet.
        advice: Advice on how to finish the pending steps.

    Attributes:
        engine: Engine of the fleet.
        state: State of the fleet.
        lock: Lock that is held during a call.
        under_way: Sub-environments that were sent and not yet received, bool `(num_envs,)`.
        failure: Error that broke the fleet.
        advice: Advice on how to finish the pending steps.
        on_error: Function that is called with the error of a failed call after the state is set; it may raise another.
    """

    def __init__(self, engine: Engine, advice: str) -> None:
        self.engine, self.advice = engine, advice
        self.state = Lifecycle.NEW
        self.lock = threading.RLock()  # Ctrl-C must not lock out its own thread
        self.failure: BaseException | None = None
        self.on_error: Callable[[BaseException], None] | None = None
        self.under_way = np.zeros(engine.traits.num_envs, np.bool_)
        if engine.traits.pending_rows is not None:
            self.state, self.under_way[engine.traits.pending_rows] = Lifecycle.PENDING, True
        if engine.traits.is_bound_to_process:
            _guards.add(self)

    @contextlib.contextmanager
    def hold(self, call: str, *allowed: Lifecycle) -> Iterator[None]:
        """Lock the fleet for a call that is valid in the states `allowed`."""
        if not self.lock.acquire(False):
            refuse_busy(call)
        try:
            if self.state not in allowed:
                self.refuse(call)
            yield
        finally:
            self.lock.release()

    def refuse(self, call: str) -> Never:
        """Raise the error for a call that is not possible in the present state."""
        refuse(call, self.state, self.failure, self.advice)

    def check_idle(self, call: str, rows: Any) -> None:
        """Check that no steps of some rows are pending.

        Raises:
            CallPending: There are such rows.
        """
        if self.under_way[rows].any():
            busy = np.flatnonzero(self.under_way).tolist()
            raise CallPending(f"{call}: sub-environments {busy} are under way: {self.advice}")

    def request(self, request: Request[Answer], after: Lifecycle | None = None) -> Answer:
        """Carry out a request; `after` is the state that it leads to, if it changes."""
        return self.run(lambda: self.engine.submit(request).wait(), after)

    def run(self, work: Callable[[], Result], after: Lifecycle | None = None) -> Result:
        """Run `work`; meanwhile the state is `TORN`, which stays if the work is interrupted."""
        before, self.state = self.state, Lifecycle.TORN
        try:
            if after is Lifecycle.READY:  # of all: whatever was under way ends here
                self.under_way[:] = False
            result = work()
            self.state = after or before
        except BaseException as error:
            self.note(error, before)
            raise
        return result

    def reset(self, call: str, request: Reset, *allowed: Lifecycle) -> dict[str, Any]:
        """Reset rows in one of the states `allowed`; a reset of all rows also repairs a torn fleet."""
        if request.rows is None:
            allowed = RESTARTABLE
            if self.state is Lifecycle.PENDING and self.engine.is_stuck:  # pending steps are dropped
                allowed = (*RESTARTABLE, Lifecycle.PENDING)
        with self.hold(call, *allowed):
            if request.rows is not None:
                self.check_idle(call, request.rows)
            return self.request(request, Lifecycle.READY if request.rows is None else None)

    def send(self, actions: Any, rows: Rows | None) -> None:
        """Start to step `rows`, or all.

        Raises:
            CallPending: Steps of some of them are pending already.
        """
        which = slice(None) if rows is None else rows
        self.check_idle("send()", which)

        def submit() -> None:
            self.engine.send(actions, rows)
            self.under_way[which] = True

        self.run(submit, Lifecycle.PENDING)

    def receive(self, batch_size: int, rows: Rows | None, timeout_s: float | None) -> Batch:
        """Wait for the steps of `rows`, or for the first `batch_size` that finish.

        Raises:
            InvalidArgument: No steps of some of `rows` are pending.
        """
        if rows is not None and not self.under_way[rows].all():
            idle = rows[~self.under_way[rows]].tolist()
            raise InvalidArgument(f"recv(env_indices=…) of {idle}, which are not under way: send() them first")
        count = None if rows is not None else min(batch_size, int(np.count_nonzero(self.under_way)))

        def collect() -> Batch:
            batch = self.engine.collect(count, rows, timeout_s)
            self.under_way[batch.env_indices] = False
            return batch

        batch = self.run(collect)
        self.state = Lifecycle.PENDING if self.under_way.any() else Lifecycle.READY
        return batch

    def close(self, timeout_s: float | None, is_forced: bool) -> list[Failure]:
        """Close the engine and return the exceptions of sub-environments; idempotent.

        Args:
            timeout_s: Seconds for sub-environments to close, `CLOSE_TIMEOUT_S` by default.
            is_forced: If True, kill the workers at once, also while another thread is in the fleet.

        Raises:
            CallPending: Another thread is in the fleet.
            EnvfleetError: This thread is in another call of the fleet.
        """
        if self.state is Lifecycle.CLOSED:
            return []
        if is_forced:
            self.engine.abort()  # a thread that is inside the fleet raises an error
        if self._is_in_call():
            raise EnvfleetError(  # of no class that engines raise before anything has changed
                "close() in the middle of another call of this thread, such as by a signal handler: raise an exception "
                "there, such as SystemExit, and close the fleet where it is caught"
            )
        if not self.lock.acquire(timeout=CLOSE_TIMEOUT_S if is_forced else 0):
            refuse_busy("close()")
        try:
            self.state = Lifecycle.CLOSED
            self.failure = None  # its traceback refers to the fleet
            return self.engine.close(0.0 if is_forced else CLOSE_TIMEOUT_S if timeout_s is None else timeout_s)
        except BaseException:
            self.engine.close(0.0)  # by force, because it will not be called again
            raise
        finally:
            self.lock.release()

    def _is_in_call(self) -> bool:
        """Return whether this thread is in a call; the lock alone may be left from one that was interrupted."""
        for frame, _ in traceback.walk_stack(inspect.currentframe()):
            name = _CALLS.get(frame.f_code.co_qualname)
            if name is not None and frame.f_locals[name] is self:  # of other frames, f_locals would keep objects alive
                return True
        return False

    def note(self, error: BaseException, before: Lifecycle) -> None:
        """Set the state after a request that failed in the state `before`."""
        state = self.engine.state_after(error)
        if state is Lifecycle.BROKEN:
            self.failure = error
        if state in (Lifecycle.BROKEN, Lifecycle.TORN):
            self.under_way[:] = False
        self.state = state or before
        if self.on_error is not None:
            self.on_error(error)

    def disown(self) -> None:
        """Make the fleet unusable in a fork of its process, without touching its workers."""
        self.state, self.lock = Lifecycle.BROKEN, threading.RLock()
        self.failure = FleetBroken(
            f"this fleet belongs to process {os.getppid()}, of which {os.getpid()} is a fork: make a fleet here"
        )


_guards: weakref.WeakSet[CallGuard] = weakref.WeakSet()


def _disown_all() -> None:
    for guard in list(_guards):
        guard.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
