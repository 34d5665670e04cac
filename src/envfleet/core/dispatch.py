"""Sends requests to workers and sorts what comes back: completions, deaths, overruns and late replies."""

from __future__ import annotations

import collections
import dataclasses
import time
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from envfleet.core.arrays import Progress
from envfleet.core.group import TICK
from envfleet.core.messages import ALL_ROWS, Completion, Request, StepPayload, Verb
from envfleet.core.transport import Transport
from envfleet.errors import EnvfleetError, RestartBudgetSpent, StepTimeout

INTERRUPT_GRACE_S = 1.0
"""How long a worker has to give up a sub-environment that overran, before the worker itself is replaced."""

BUDGET_WINDOW_S = 3600.0


class RestartBudget:
    """At most `limit` restarts within any hour."""

    def __init__(self, limit: int) -> None:
        self.limit, self.spent = limit, 0
        self._times: collections.deque[float] = collections.deque()

    def spend(self, cause: EnvfleetError) -> None:
        """Count one restart.

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
        self.spent += 1


@dataclasses.dataclass(slots=True)
class _Pending:
    request: Request
    rows_left: set[int] | None  # of a STEP that completes row by row


@dataclasses.dataclass(slots=True)
class _Watch:
    word: int = 0
    since: float = 0.0
    interrupted: StepTimeout | None = None


class Dispatcher:
    """The fleet's side of its workers.

    Args:
        transport: Where the workers are.
        progress: Progress lines, `(num_workers, PROGRESS_WORDS)`.
        first_indices: Index in the fleet of each worker's first sub-environment.
        step_timeout_s: Deadline of each sub-environment's step or reset; `None` for none.
        on_failure: Whether dead or stuck workers are replaced or reported.
        budget: Counts restarts.
        start_timeout_s: Limit for a replacement to get ready.

    Attributes:
        ready: Completions per worker, in order, for the fleet to take.
        restarts: How often each worker was replaced.
    """

    def __init__(
        self,
        transport: Transport,
        progress: NDArray[np.int64],
        first_indices: list[int],
        *,
        step_timeout_s: float | None,
        on_failure: Literal["raise", "restart"],
        budget: RestartBudget,
        start_timeout_s: float,
    ) -> None:
        self.transport, self.budget = transport, budget
        self._progress, self._first_indices = progress, first_indices
        self._step_timeout_s, self._on_failure, self._start_timeout_s = step_timeout_s, on_failure, start_timeout_s
        self._pending: list[dict[int, _Pending]] = [{} for _ in first_indices]
        self._watches = [_Watch() for _ in first_indices]
        self._seq = 0
        self.ready: list[collections.deque[Completion]] = [collections.deque() for _ in first_indices]
        self.restarts = [0] * len(first_indices)

    def submit(self, worker: int, verb: Verb, generation: int = 0, payload: Any = None) -> int:
        """Send a request; returns its number."""
        self._seq += 1
        rows_left = None
        if verb is Verb.STEP and payload is not None and payload.one_by_one:
            rows_left = set(payload.rows)
        request = Request(verb, self._seq, generation, payload)
        self._pending[worker][self._seq] = _Pending(request, rows_left)
        self.transport.submit(worker, request)
        return self._seq

    def abandon(self, worker: int) -> None:
        """Forget what a worker still owes: it will be dropped when it comes."""
        self._pending[worker].clear()
        self.ready[worker].clear()

    def pump(self, timeout_s: float | None) -> bool:
        """Wait for completions and sort them into `ready`; False if `timeout_s` (or a moment to look around) passed.

        Raises:
            RestartBudgetSpent: A worker had to be replaced once too often.
        """
        patience_s = timeout_s
        if self._step_timeout_s is not None:
            look_s = max(self._step_timeout_s / 4, 0.005)
            patience_s = look_s if timeout_s is None else min(timeout_s, look_s)
        completions = self.transport.wait(patience_s)
        for completion in completions:
            self._accept(completion)
        if self._step_timeout_s is not None and not completions:
            self._look_for_overruns(self._step_timeout_s)
        return bool(completions)

    def _accept(self, completion: Completion) -> None:
        worker, seq, row = completion.worker, completion.seq, completion.row
        pending = self._pending[worker]
        if completion.death is not None:
            self._bury(worker, completion.death)
            return
        found = pending.get(seq)
        if found is None:
            return  # late: the call it belongs to was given up
        if row == ALL_ROWS:
            del pending[seq]
        elif found.rows_left is not None:
            found.rows_left.discard(row)
            if not found.rows_left:
                del pending[seq]
        self.ready[worker].append(completion)

    def _bury(self, worker: int, death: EnvfleetError) -> None:
        """Replace a dead worker and repeat what it left undone, or report it."""
        self._watches[worker] = _Watch()
        undone, self._pending[worker] = self._pending[worker], {}
        if self._on_failure == "raise":
            self.ready[worker].append(Completion(worker, 0, ALL_ROWS, death=death))
            return
        self.budget.spend(death)
        self.restarts[worker] += 1
        self.transport.restart(worker, death.summary, self._start_timeout_s)
        for seq, pending in undone.items():
            request = pending.request
            if request.verb not in (Verb.STEP, Verb.RESET):
                self.ready[worker].append(Completion(worker, seq, ALL_ROWS, death=death))
                continue
            if pending.rows_left is not None:
                request = request._replace(payload=_only(request.payload, pending.rows_left))
            self._pending[worker][seq] = _Pending(request, pending.rows_left)
            self.transport.submit(worker, request)

    def replace(self, worker: int) -> None:
        """Replace a worker that has nothing to do by a new one, whose sub-environments await their state."""
        self.restarts[worker] += 1
        self.transport.restart(worker, None, self._start_timeout_s)

    def _look_for_overruns(self, timeout_s: float) -> None:
        now = time.monotonic()
        for worker, pending in enumerate(self._pending):
            watch, word = self._watches[worker], int(self._progress[worker, Progress.ROW])
            row = word % TICK - 1
            if not pending or row < 0:
                watch.word = 0
            elif word != watch.word:
                self._watches[worker] = _Watch(word, now)
            elif watch.interrupted is not None:
                if now - watch.since > INTERRUPT_GRACE_S:
                    self.transport.kill(worker, watch.interrupted)
            elif now - watch.since >= timeout_s:
                self._stop_overrun(worker, row, watch, now, timeout_s)

    def _stop_overrun(self, worker: int, row: int, watch: _Watch, now: float, timeout_s: float) -> None:
        stack = self.transport.stack(worker)
        error = StepTimeout(worker, self._first_indices[worker] + row, timeout_s, stack)
        if self._on_failure == "raise":
            self.transport.kill(worker, error)
            return
        watch.interrupted, watch.since = error, now
        self._progress[worker, Progress.INTERRUPT] = watch.word
        self.transport.interrupt(worker)


def _only(payload: StepPayload, rows_left: set[int]) -> StepPayload:
    rows = payload.rows or ()
    kept = [k for k, row in enumerate(rows) if row in rows_left]
    return payload._replace(
        rows=tuple(rows[k] for k in kept), objects=[[leaf[k] for k in kept] for leaf in payload.objects]
    )
