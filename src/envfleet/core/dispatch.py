"""Sends requests to workers and sorts what comes back: completions, deaths, overruns and late replies."""

from __future__ import annotations

import collections
import dataclasses
import time
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from envfleet.core.arrays import PlaceWord
from envfleet.core.messages import ALL_ROWS, Completion, Request, StepPayload, Verb
from envfleet.core.recorder import Recorder
from envfleet.core.replay import write_replay
from envfleet.core.transport import Transport
from envfleet.errors import EnvfleetError, RestartBudgetSpent, StartTimeout, StepTimeout, WorkerDied

INTERRUPT_GRACE_S = 1.0
"""How long a worker has to give up a sub-environment that overran, before the worker itself is replaced."""

OUTSIDE_S = 60.0
"""How long a worker with a deadline may have work and be in no sub-environment, before it counts as stopped."""

BUDGET_WINDOW_S = 3600.0

_STEP = Verb.STEP  # an enum's member is slow to look up


Inbox: TypeAlias = collections.deque[Completion]
"""Where the completions of one call, or of all that a part of a fleet sent, arrive in order."""


class RestartBudget:
    """At most `limit` restarts within any hour.

    Args:
        limit: How many.

    Attributes:
        spent: Restarts so far, by worker.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent: collections.Counter[int] = collections.Counter()
        self._times: collections.deque[float] = collections.deque()

    def spend(self, cause: EnvfleetError, worker: int) -> None:
        """Count one restart of a worker, or of a sub-environment of it.

        Raises:
            RestartBudgetSpent: It was one too many.
        """
        now = time.monotonic()
        while self._times and now - self._times[0] > BUDGET_WINDOW_S:
            self._times.popleft()
        if len(self._times) >= self.limit:
            raise RestartBudgetSpent(
                f"{len(self._times)} restarts within the last hour, max_restarts={self.limit}: mend the environment "
                f"or raise max_restarts. The last failure: {cause}"
            ) from cause
        self._times.append(now)
        self.spent[worker] += 1


@dataclasses.dataclass(slots=True)
class _Pending:
    worker: int
    request: Request
    inbox: Inbox
    rows_left: set[int] | None  # of a STEP that completes row by row


@dataclasses.dataclass(slots=True)
class _Watch:
    place: int = 0
    since: float = 0.0
    interrupted: StepTimeout | None = None
    outside: tuple[int, int] | None = None  # oldest request and turn, while it has work and is in no sub-environment
    outside_since: float = 0.0


class Dispatcher:
    """The fleet's side of its workers.

    Args:
        transport: Where the workers are.
        progress: Progress lines, `(num_workers, PROGRESS_WORDS)`.
        worker_rows: Indices in the fleet of each worker's sub-environments.
        step_timeout_s: Deadline of each sub-environment's step or reset; `None` for none.
        on_failure: Whether dead or stuck workers are replaced or reported.
        budget: Counts restarts.
        start_timeout_s: Limit for a replacement to get ready, and, beside a `step_timeout_s`, for a worker to build one
            sub-environment again.
        recorder: Knows what workers were doing that did not live to tell; `None` where they are the caller.

    Attributes:
        restarts: How often each worker was replaced.
    """

    def __init__(
        self,
        transport: Transport,
        progress: NDArray[np.int64],
        worker_rows: list[range],
        *,
        step_timeout_s: float | None,
        on_failure: Literal["raise", "restart"],
        budget: RestartBudget,
        start_timeout_s: float,
        recorder: Recorder | None,
    ) -> None:
        self.transport, self.budget, self._recorder = transport, budget, recorder
        self._progress, self._worker_rows = progress, worker_rows
        self._step_timeout_s, self._on_failure, self._start_timeout_s = step_timeout_s, on_failure, start_timeout_s
        self._pending: dict[int, _Pending] = {}
        self._deaths: dict[int, EnvfleetError] = {}
        self._watches = [_Watch() for _ in worker_rows]
        self._next_look_s = 0.0
        self._seq = 0
        self.restarts = [0] * len(worker_rows)

    def submit(self, inbox: Inbox, worker: int, verb: Verb, generation: int = 0, payload: Any = None) -> None:
        """Send a request, whose completions will go to `inbox`."""
        self._seq += 1
        rows_left = None
        if payload is not None and verb is _STEP and payload.one_by_one:
            rows_left = set(payload.rows)
        request = Request(verb, self._seq, generation, payload)
        if worker in self._deaths:
            inbox.append(Completion(worker, self._seq, ALL_ROWS, death=self._deaths[worker]))
            return
        completions = self.transport.submit(worker, request)
        if verb is _STEP and self._recorder is not None:  # after it is sent: the worker steps meanwhile
            self._recorder.notes[worker](payload)
        if completions:
            inbox.extend(completions)
        else:
            self._pending[self._seq] = _Pending(worker, request, inbox, rows_left)

    def has_pending(self, inbox: Inbox) -> bool:
        """Whether something has come, or is still to come, to `inbox`."""
        return bool(inbox) or any(pending.inbox is inbox for pending in self._pending.values())

    def abandon(self, inbox: Inbox) -> None:
        """Forget what is still to come to `inbox`: it will be dropped when it comes."""
        self._pending = {seq: pending for seq, pending in self._pending.items() if pending.inbox is not inbox}
        inbox.clear()

    def pump(self, timeout_s: float | None) -> bool:
        """Wait for completions and sort them into their inboxes; False if the time, or a moment to look around, passed.

        Raises:
            RestartBudgetSpent: A worker had to be replaced once too often.
        """
        patience_s = timeout_s
        if self._step_timeout_s is not None:
            left_s = self._next_look_s - time.monotonic()
            look_s = left_s if left_s > 0 else _look_every_s(self._step_timeout_s)
            patience_s = look_s if timeout_s is None else min(timeout_s, look_s)
        completions = self.transport.wait(patience_s)
        for completion in completions:
            self._accept(completion)
        if self._step_timeout_s is not None and time.monotonic() >= self._next_look_s:  # however many others came
            self._look_for_overruns(self._step_timeout_s)
            self._next_look_s = time.monotonic() + _look_every_s(self._step_timeout_s)
        return bool(completions)

    def _accept(self, completion: Completion) -> None:
        if completion.death is not None:
            self._bury(completion.worker, completion.death)
            return
        pending = self._pending.get(completion.seq)
        if pending is None:
            return  # late: the call it belongs to was given up
        if completion.row == ALL_ROWS:
            del self._pending[completion.seq]
        elif pending.rows_left is not None:
            pending.rows_left.discard(completion.row)
            if not pending.rows_left:
                del self._pending[completion.seq]
        pending.inbox.append(completion)

    def _bury(self, worker: int, death: EnvfleetError) -> None:
        """Replace a dead worker and repeat what it left undone, or report it."""
        self._watches[worker] = _Watch()
        undone = {seq: pending for seq, pending in self._pending.items() if pending.worker == worker}
        if isinstance(death, (WorkerDied, StepTimeout)):
            self._blame(worker, next((pending.request.verb for pending in undone.values()), Verb.STEP), death)
        if self._on_failure == "restart":
            self.budget.spend(death, worker)
            self.restarts[worker] += 1
            self._restart(worker, death.summary)
            if isinstance(death, WorkerDied):
                death.is_repaired = True
        else:
            self._deaths[worker] = death
        for seq, pending in undone.items():
            request = pending.request
            if self._on_failure == "raise" or request.verb not in (Verb.STEP, Verb.RESET):
                del self._pending[seq]
                pending.inbox.append(Completion(worker, seq, ALL_ROWS, death=death))
                continue
            if pending.rows_left is not None:
                request = pending.request = request._replace(payload=_only(request.payload, pending.rows_left))
            self.transport.submit(worker, request)
            if request.verb is _STEP and self._recorder is not None:
                self._recorder.notes[worker](request.payload)

    def _blame(self, worker: int, verb: Verb, death: WorkerDied | StepTimeout) -> None:
        """Add to an error what the worker was doing, and leave a file to run it again."""
        if self._recorder is None:
            return
        failure = self._recorder.describe(worker, verb, death, self.transport.pid(worker))
        if failure is not None:
            failure, path = write_replay(failure)
            death.blame([failure], path)

    def _restart(self, worker: int, lost: str | None) -> None:
        if self._recorder is not None:
            self._recorder.restart(worker)
        self.transport.restart(worker, lost, self._start_timeout_s)

    def replace(self, worker: int) -> None:
        """Replace a worker that has nothing to do by a new one, whose sub-environments await their state."""
        self.restarts[worker] += 1
        self._restart(worker, None)

    def _look_for_overruns(self, timeout_s: float) -> None:
        now = time.monotonic()
        oldest = {pending.worker: seq for seq, pending in reversed(self._pending.items())}
        for worker in range(len(self._watches)):
            watch, line = self._watches[worker], self._progress[worker]
            place, row = PlaceWord.place(line), PlaceWord.row(line)
            if worker not in oldest:
                watch.place, watch.outside = 0, None
            elif row < 0:
                self._look_outside(worker, (oldest[worker], int(line[PlaceWord.TURN])), now, max(timeout_s, OUTSIDE_S))
            elif place != watch.place:
                self._watches[worker] = _Watch(place, now)
            elif PlaceWord.is_building(line, place):
                self._look_at_building(worker, now - watch.since)
            elif watch.interrupted is not None:
                if now - watch.since > INTERRUPT_GRACE_S:
                    self.transport.kill(worker, watch.interrupted)
            elif now - watch.since >= timeout_s:
                self._stop_overrun(worker, row, watch, now, timeout_s)

    def _look_at_building(self, worker: int, took_s: float) -> None:
        """Replace a worker that takes too long to build a sub-environment again: its successor builds all of them."""
        limit_s = self._start_timeout_s
        if took_s >= limit_s:
            self.transport.kill(worker, StartTimeout([worker], limit_s, self.transport.stack(worker)))

    def _look_outside(self, worker: int, outside: tuple[int, int], now: float, limit_s: float) -> None:
        """Give up a worker that has work and does none of it, as one that was sent SIGSTOP."""
        watch = self._watches[worker]
        watch.place = 0
        if outside != watch.outside:
            watch.outside, watch.outside_since = outside, now
        elif now - watch.outside_since >= limit_s:
            watch.outside = None
            if not self.transport.can_look(worker) or worker in self._hear_all():
                return
            how = f"was given up, having work and being in no sub-environment for {limit_s:g} s, as if it was stopped"
            death = WorkerDied(worker, self._worker_rows[worker], None, self.transport.pid(worker), how=how)
            self.transport.kill(worker, death)

    def _hear_all(self) -> set[int]:
        """Take in everything that came while nobody listened; returns whom it came from."""
        heard = set()
        while completions := self.transport.wait(0):
            for completion in completions:
                heard.add(completion.worker)
                self._accept(completion)
        return heard

    def _stop_overrun(self, worker: int, row: int, watch: _Watch, now: float, timeout_s: float) -> None:
        stack = self.transport.stack(worker)
        error = StepTimeout(worker, self._worker_rows[worker][row], timeout_s, stack)
        if self._on_failure == "raise":
            self.transport.kill(worker, error)
            return
        watch.interrupted, watch.since = error, now
        self._progress[worker, PlaceWord.INTERRUPT] = watch.place
        self.transport.interrupt(worker)


def _look_every_s(step_timeout_s: float) -> float:
    return max(step_timeout_s / 4, 0.005)


def _only(payload: StepPayload, rows_left: set[int]) -> StepPayload:
    rows = payload.rows or ()
    kept = [k for k, row in enumerate(rows) if row in rows_left]
    return payload._replace(
        rows=tuple(rows[k] for k in kept), objects=[[leaf[k] for k in kept] for leaf in payload.objects]
    )
