"""`WorkerPool`: the owner's side of the workers: requests, waits, and the replacement of lost workers.

Problem. A worker may exit, be killed, or hang at any time, also while the owner waits for others, is interrupted by
Ctrl-C, or builds another worker. No wait may last forever, and no loss may disturb rows of other workers.

What does not work. Waiting on pipes of all workers: each wake-up would cost more than a step. A monitoring thread: it
would compete with the policy for the GIL and race with the owner.

Solution. The owner checks its workers (`attend`) only when a wait has lasted for a tick without success. It kills
workers that exceeded a deadline, and finds those that have ended. With `on_failure="restart"`, their rows become *lost*
and a successor is started at once. It builds while the fleet continues; the owner waits for it when its rows are needed
(`await_rebuilt`). Requests are numbered, so late replies to an interrupted request cannot be mistaken for others.

What remains. A worker is lost as a whole: all its rows end with it.

See ADR 20 and ADR 22.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from envfleet import errors
from envfleet.fleet.lifecycle import Lifecycle, refuse
from envfleet.fleet.stats import WorkerStats
from envfleet.options import Options
from envfleet.workers import board
from envfleet.workers.arrays import ArraysSpec
from envfleet.workers.board import ASKED, ASLEEP, BUSY_NS, DONE, FLAGS, IS_ORDERED, STEPS, Verb
from envfleet.workers.messages import GroupInfo, GroupPlan, Reply
from envfleet.workers.transport import Transport

_BUDGET_WINDOW_S = 3600.0
_END_S = 2.0  # time for a worker to exit after it has closed its sub-environments
_LEAST_TICK_S = 0.005
_OUTSIDE_S = 60.0  # time that a worker with a deadline may be busy outside of any sub-environment


class WorkerPool:
    """Workers of a fleet.

    Args:
        plans: Plan of each worker.
        options: Options of the fleet.
        transport: Transport of the workers, not started yet.
        describe_rows: Function that describes the episodes of some rows in words, given the seeds of all rows.

    Attributes:
        lines: Words of each worker.
        spans: Rows of each worker.
        every: Indices of all workers.
        lost: Rows of lost workers, each with the reason, to be reported by the pending step or the next one.
        seeds: Last seed of each row, from the caller or from its rebuild.
        restarts: Number of replacements of each worker and of its sub-environments.
        ended: Number of episodes that ended since each worker was built.
        waiter: Waits of the owner.
        tick_s: Interval at which a waiting owner checks its workers.
    """

    def __init__(
        self,
        plans: Sequence[GroupPlan],
        options: Options,
        transport: Transport,
        describe_rows: Callable[[list[int | None], range], str],
    ) -> None:
        self._plans, self._options, self.transport, self._describe_rows = list(plans), options, transport, describe_rows
        self.lines, self.waiter = transport.lines, transport.waiter
        self.spans = [plan.rows for plan in plans]
        self.every = list(range(len(plans)))
        self.lost: dict[int, errors.EnvfleetError] = {}
        self.seeds: list[int | None] = [None] * plans[-1].rows.stop
        self.restarts: collections.Counter[int] = collections.Counter()
        self.ended = [0] * len(plans)
        self.rebuilding: set[int] = set()
        self._spec: ArraysSpec | None = None
        self._number, self._fence = 0, transport.waiter.fence
        self._is_closed = False
        self._spent: collections.deque[float] = collections.deque()
        self._overruns: dict[int, errors.EnvfleetError] = {}
        self._seen: dict[int, tuple[tuple[int, ...], float]] = {}
        timeouts_s = options.start_timeout_s, options.step_timeout_s or math.inf
        self.tick_s = max(min(timeouts_s) / 4, _LEAST_TICK_S)

    # ------------------------------------------------------------------------------------------- asking, waiting

    def ask(self, workers: Sequence[int], verb: Verb, generation: int = 0) -> int:
        """Send workers a request with its arguments in the arrays and the mail; return its value of `ASKED`."""
        if verb < Verb.RESET and self.waiter.spin_policy is not None:
            self.waiter.spin_policy.next_step(time.perf_counter_ns())
        self._number += 1
        request = self._number << 4 | generation << 3 | verb
        lines = self.lines
        if not IS_ORDERED:
            self._fence()
        for worker in workers:
            lines[worker][ASKED] = request
        self._fence()
        for worker in workers:
            if lines[worker][ASLEEP]:
                self.transport.ring(worker)
        return request

    def step(self, generation: int) -> int:
        """Step all rows of every worker, and wait.

        Returns:
            Flags of all workers combined; -1 if something needs attention and `finish` has to be called.
        """
        start_ns = (
            time.perf_counter_ns()
        )  # before the request: this process may lose the processor as soon as a worker wakes up
        if self.waiter.spin_policy is not None:
            self.waiter.spin_policy.next_step(start_ns)
        self._number += 1
        request, lines = self._number << 4 | generation << 3, self.lines
        if not IS_ORDERED:
            self._fence()
        for line in lines:
            line[ASKED] = request
        self._fence()
        for worker, line in enumerate(lines):
            if line[ASLEEP]:
                self.transport.ring(worker)
        are_done = lambda: all([line[DONE] == request for line in lines])  # noqa: C419, E731  # a list is faster
        if not self.waiter.wait(are_done, start_ns, self.tick_s, awaited=request):
            return -1
        flags = 0
        for line in lines:
            flags |= line[FLAGS]
        return flags

    def finish(self, workers: Sequence[int], *, timeout_s: float | None = None) -> list[int]:
        """Wait until workers have completed their requests.

        Args:
            workers: Indices of workers.
            timeout_s: Timeout of the caller, in seconds.

        Returns:
            Workers that have completed theirs; the others were lost.

        Raises:
            CallTimeout: `timeout_s` passed.
            WorkerDied: A worker ended.
            StepTimeout: A sub-environment exceeded its deadline.
            StartTimeout: Sub-environments were not built in time.
            RestartBudgetSpent: Workers ended too often.
        """
        left = {worker: self.lines[worker] for worker in workers}
        lines = left.values()

        def attend() -> None:
            for worker in self.attend():
                left.pop(worker, None)

        if not all([line[DONE] == line[ASKED] for line in lines]):  # noqa: C419  # a list is faster
            self.wait(lambda: all([line[DONE] == line[ASKED] for line in lines]), attend, timeout_s)  # noqa: C419
        return list(left)

    def wait(self, is_there: Callable[[], bool], attend: Callable[[], Any], timeout_s: float | None) -> None:
        """Wait until `is_there` returns True; call `attend` after every tick of waiting.

        Raises:
            CallTimeout: `timeout_s` passed.
        """
        begun_ns = start_ns = time.perf_counter_ns()
        left_s = math.inf if timeout_s is None else timeout_s
        while not self.waiter.wait(is_there, start_ns, min(self.tick_s, left_s)):
            attend()
            start_ns = time.perf_counter_ns()
            if timeout_s is not None:
                left_s = max(0.0, timeout_s - (start_ns - begun_ns) / 1e9)
                if not left_s and not is_there():
                    raise errors.CallTimeout("recv", timeout_s)

    def settle(self) -> None:
        """Wait until no request is pending, even if an interrupt came before a worker was woken."""
        late = [worker for worker, line in enumerate(self.lines) if line[DONE] != line[ASKED]]
        for worker in late:
            if self.transport.server is not None:
                self.lines[worker][DONE] = self.lines[worker][ASKED]  # this thread does nothing by itself
            else:
                self.transport.ring(worker)
        if late or self.rebuilding:
            self.finish(self.every)

    def attend(self) -> set[int]:
        """Kill workers that exceeded a deadline, replace workers that have ended, and return the latter."""
        self._check_overruns()
        ended = self._find_ended()
        for worker, why in ended.items():
            if self._is_closed:
                refuse("a call", Lifecycle.CLOSED, None)
            if self._options.on_failure == "raise" or self._spec is None:
                raise why
            self.spend(worker, why)
            why.args = (why.summary,)  # without the advice to pass on_failure
            self.lost.update(dict.fromkeys(self.spans[worker], why))
            self.replace(worker)
        return set(ended)

    def send(self, verb: Verb, messages: Mapping[int, Any], generation: int = 0) -> None:
        """Send a request to workers by mail.

        Raises:
            InvalidArgument: A message does not pickle.
        """
        workers = list(messages)
        if self.rebuilding or any([self.lines[one][DONE] != self.lines[one][ASKED] for one in workers]):  # noqa: C419
            self._make_free(workers)
        for worker, message in messages.items():
            self.transport.requests.put(worker, message)
        self.ask(workers, verb, generation)

    def _make_free(self, workers: list[int]) -> None:
        """Wait for interrupted requests and for successors, which still have to read the mail of their workers."""
        while not set(self.finish(workers)).issuperset(workers) or self.rebuilding.intersection(workers):
            self.await_rebuilt(workers)

    def replies(self, workers: Sequence[int]) -> dict[int, Reply]:
        """Return the replies that workers have mailed.

        Raises:
            EnvfleetError: A request failed in a worker.
        """
        replies: dict[int, Reply] = {}
        for worker in workers:
            flags = self.lines[worker][FLAGS]
            if flags & board.MAIL:
                reply = self.reply(worker, 0)
                if flags & board.ERROR:
                    raise reply
                replies[worker] = reply
        return replies

    def reply(self, worker: int, slot: int) -> Any:
        """Return the message in a slot of a worker's mail.

        Raises:
            EnvfleetError: The message cannot be unpickled in this process.
        """
        try:
            return self.transport.replies[worker].get(slot)
        except Exception as error:
            raise errors.EnvfleetError(
                f"the reply of worker {worker} for sub-environments {list(self.spans[worker])} cannot be unpickled "
                f"here ({type(error).__name__}: {error}): return values that pickle and unpickle, of classes that "
                "this process can import"
            ) from error

    # ------------------------------------------------------------------------------------ building, replacing

    def build(self) -> list[GroupInfo]:
        """Start all workers, and let them build their sub-environments."""
        self.transport.start(self._options.start_timeout_s)
        for worker, plan in enumerate(self._plans):
            self.transport.requests.put(worker, plan)
        self.ask(self.every, Verb.BUILD)
        self.finish(self.every)
        return [reply.value for reply in self.replies(self.every).values()]

    def attach(self, spec: ArraysSpec) -> None:
        """Let every worker map its rows of the arrays."""
        self.send(Verb.ATTACH, dict.fromkeys(self.every, spec))
        self.finish(self.every)
        self._spec = spec

    def replace(self, worker: int, rng_states: tuple[Any, ...] = ()) -> None:
        """Start a successor, which builds while other workers continue, until its rows are needed."""
        plan = self._plans[worker] = self._plans[worker].successor(rng_states)
        for place, row in enumerate(plan.rows):
            if not rng_states or rng_states[place] is None:  # else the successor continues with the generator
                self.seeds[row] = plan.derive_seed(place)
        self.rebuilding.add(worker)
        self.ended[worker] = 0
        self._seen.pop(worker, None)
        self.transport.replace(worker, plan)
        self.transport.requests.put(worker, plan)
        self.ask([worker], Verb.BUILD)

    def await_rebuilt(self, workers: Iterable[int], timeout_s: float | None = None) -> None:
        """Wait until successors among `workers` are ready.

        Raises:
            CallTimeout: Their sub-environments were not built within `timeout_s`.
        """
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        for worker in sorted(self.rebuilding.intersection(workers)):
            while worker in self.rebuilding:
                left_s = None if timeout_s is None else max(0.0, deadline_s - time.monotonic())
                if not self.finish([worker], timeout_s=left_s):
                    continue  # it was lost as well, and has a successor
                self.replies([worker])
                self.transport.requests.put(worker, self._spec)
                self.ask([worker], Verb.ATTACH)
                if self.finish([worker]):
                    self.rebuilding.discard(worker)

    def recycle(self, worker: int, rng_states: tuple[Any, ...]) -> None:
        """Close a worker between episodes, and start its successor."""
        self.ask([worker], Verb.CLOSE)
        if self.finish([worker]):  # else it was lost, and replaced
            self.transport.kill(worker, _END_S)
            self.replace(worker, rng_states)

    def spend(self, worker: int, cause: errors.EnvfleetError) -> None:
        """Count one restart.

        Raises:
            RestartBudgetSpent: There were `max_restarts` within the last hour.
        """
        now = time.monotonic()
        while self._spent and now - self._spent[0] > _BUDGET_WINDOW_S:
            self._spent.popleft()
        if len(self._spent) >= self._options.max_restarts:
            raise errors.RestartBudgetSpent(
                f"{len(self._spent)} restarts within the last hour, max_restarts={self._options.max_restarts}: fix "
                f"the environment or raise max_restarts. The last failure: {cause}"
            ) from cause
        self._spent.append(now)
        self.restarts[worker] += 1

    # ------------------------------------------------------------------------------------------------ watching

    def _check_overruns(self) -> None:
        """Kill workers that exceeded a deadline, and keep their stacks for the error."""
        if not self.transport.can_kill:
            return
        now = time.monotonic()
        for worker, line in enumerate(self.lines):
            asked, is_rebuilding = line[ASKED], line[board.IS_REBUILDING]
            place = asked, line[board.ROW], is_rebuilding
            seen, since = self._seen.get(worker, (None, now))
            if line[DONE] == asked or place != seen:
                self._seen[worker] = place, now
                continue
            is_building = bool(is_rebuilding) or asked & 7 == Verb.BUILD
            why = self._overrun(worker, line[board.ROW] - 1, is_building, now - since)
            if why is not None:
                self._overruns[worker] = why
                self.transport.kill(worker)

    def _overrun(self, worker: int, row: int, is_building: bool, took_s: float) -> errors.EnvfleetError | None:
        """Return the error for a worker that has been busy with one row for `took_s`, if that exceeds a deadline."""
        rows, limit_s = self.spans[worker], self._options.step_timeout_s
        if is_building:
            limit_s = self._options.start_timeout_s
            return errors.StartTimeout([worker], limit_s, self.transport.stack(worker)) if took_s >= limit_s else None
        if limit_s is None:
            return None
        if row >= 0:
            if took_s < limit_s:
                return None
            return errors.StepTimeout(
                worker, rows[row], limit_s, self.transport.stack(worker), self._describe_rows(self.seeds, rows)
            )
        if took_s < max(limit_s, _OUTSIDE_S):
            return None
        how = f"was busy outside of any sub-environment for {took_s:.0f} s, as if it were stopped"
        return errors.WorkerDied(worker, rows, None, self.transport.pid(worker), how=how)

    def _find_ended(self) -> dict[int, errors.EnvfleetError]:
        """Return the workers that have ended, each with the reason."""
        errors_by_worker: dict[int, errors.EnvfleetError] = {}
        ended = self.transport.ended()
        for worker, (exitcode, how) in zip(ended, self.transport.how_ended(ended), strict=True):
            rows, row = self.spans[worker], self.lines[worker][board.ROW] - 1
            died = errors.WorkerDied(
                worker,
                rows,
                exitcode,
                self.transport.pid(worker),
                env_index=rows[row] if 0 <= row < len(rows) else None,
                rows=self._describe_rows(self.seeds, rows),
                how=how,
            )
            errors_by_worker[worker] = self._overruns.pop(worker, died)
        return errors_by_worker

    # ------------------------------------------------------------------------------------- statistics and closing

    def look(self, *, stacks: bool = False) -> tuple[WorkerStats, ...]:
        """Return statistics of the workers; from any thread.

        Args:
            stacks: If True, also read the Python stack of each worker.
        """
        texts = self.transport.stacks(self.every) if stacks else [""] * len(self.every)
        return tuple(
            WorkerStats(
                index=worker,
                env_indices=self.spans[worker],
                pid=self.transport.pid(worker),
                steps=self.lines[worker][STEPS],
                busy_s=self.lines[worker][BUSY_NS] / 1e9,
                restarts=self.restarts[worker],
                place=self.transport.place(worker),
                stack=text,
            )
            for worker, text in zip(self.every, texts, strict=True)
        )

    def abort(self) -> None:
        """Kill all workers; a thread that waits for them raises `FleetClosed`."""
        self._is_closed = True
        for worker in self.every:
            self.transport.kill(worker)

    def close(self, timeout_s: float) -> list[Reply]:
        """Ask the workers to close, kill those that do not in time, release everything, and return their replies."""
        self._is_closed = True
        deadline_s = time.monotonic() + timeout_s
        replies: list[Reply] = []
        try:
            if (
                timeout_s > 0 or not self.transport.can_kill
            ):  # a thread cannot be killed; it exits when it reads this request
                left = alive = [worker for worker in self.every if worker not in self.transport.ended()]
                request = self.ask(alive, Verb.CLOSE)

                def under_way() -> list[int]:
                    return [worker for worker in left if self.lines[worker][DONE] != request]

                while left and time.monotonic() < deadline_s:
                    left_s = deadline_s - time.monotonic()
                    self.waiter.wait(lambda: not under_way(), time.perf_counter_ns(), left_s)
                    left = [worker for worker in under_way() if worker not in self.transport.ended()]
                replies = list(self.replies([w for w in alive if self.lines[w][DONE] == request]).values())
        except BaseException:
            deadline_s = 0.0  # Ctrl-C: kill whatever has not closed yet
            raise
        finally:
            self.transport.close(max(0.0, deadline_s - time.monotonic()))
        return replies
