"""The owner's hold on its workers: ask and wait, see who ended or overran, replace those that are lost."""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from envfleet import errors
from envfleet.fleet.lifecycle import Lifecycle, refuse
from envfleet.options import Options
from envfleet.workers import board
from envfleet.workers.arrays import ArraysSpec
from envfleet.workers.board import ASKED, ASLEEP, DONE, FLAGS, IS_ORDERED, Verb
from envfleet.workers.env_group import GroupInfo, GroupPlan, Reply
from envfleet.workers.transport import Transport

_BUDGET_WINDOW_S = 3600.0
_END_S = 2.0  # how long a worker may take to end after it has closed its sub-environments
_LEAST_TICK_S = 0.005
_OUTSIDE_S = 60.0  # how long a worker with a deadline may be busy outside of any sub-environment


class Crew:
    """The workers of a fleet.

    Args:
        plans: What each worker is built from.
        options: Of the fleet.
        transport: Carries the workers; not started yet.
        describe_rows: Returns what is known of the episodes of some rows, in words, given the seeds of all.

    Attributes:
        lines: Words of each worker.
        spans: Rows of each worker.
        every: All workers.
        lost: Rows whose worker was lost, and why, which is to be told with the step that is under way, or the next.
        seeds: Seed that each row was last given, by the caller or when it was rebuilt.
        restarts: How often each worker, or a sub-environment of it, was replaced.
        ended: Episodes that ended since each worker was built.
        waiting: How the owner waits.
        tick_s: How often to look after the workers while it waits.
    """

    def __init__(
        self,
        plans: Sequence[GroupPlan],
        options: Options,
        transport: Transport,
        describe_rows: Callable[[list[int | None], range], str],
    ) -> None:
        self._plans, self._options, self.transport, self._describe_rows = list(plans), options, transport, describe_rows
        self.lines, self.waiting = transport.lines, transport.waiting
        self.spans = [plan.rows for plan in plans]
        self.every = list(range(len(plans)))
        self.lost: dict[int, errors.EnvfleetError] = {}
        self.seeds: list[int | None] = [None] * plans[-1].rows.stop
        self.restarts: collections.Counter[int] = collections.Counter()
        self.ended = [0] * len(plans)
        self.rebuilding: set[int] = set()
        self._spec: ArraysSpec | None = None
        self._number, self._fence = 0, transport.waiting.fence
        self._is_closed = False
        self._spent: collections.deque[float] = collections.deque()
        self._overruns: dict[int, errors.EnvfleetError] = {}
        self._seen: dict[int, tuple[tuple[int, ...], float]] = {}
        timeouts_s = options.start_timeout_s, options.step_timeout_s or math.inf
        self.tick_s = max(min(timeouts_s) / 4, _LEAST_TICK_S)

    # ------------------------------------------------------------------------------------------- asking, waiting

    def ask(self, workers: Sequence[int], verb: Verb, generation: int = 0) -> int:
        """Ask workers for something, and return its number; what it takes lies in the arrays and in the mail."""
        if verb < Verb.RESET and self.waiting.choice is not None:
            self.waiting.choice.begin(time.perf_counter_ns())
        self._number += 1
        asked = self._number << 4 | generation << 3 | verb
        lines = self.lines
        if not IS_ORDERED:
            self._fence()
        for worker in workers:
            lines[worker][ASKED] = asked
        self._fence()
        for worker in workers:
            if lines[worker][ASLEEP]:
                self.transport.ring(worker)
        return asked

    def step(self, generation: int) -> int:
        """Have every worker step all its rows, and wait.

        Returns:
            The flags of all; below 0 if something needs attention first, and `finish` is still due.
        """
        start_ns = time.perf_counter_ns()  # before asking: the processor may be lost as soon as somebody is woken
        if self.waiting.choice is not None:
            self.waiting.choice.begin(start_ns)
        self._number += 1
        asked, lines = self._number << 4 | generation << 3, self.lines
        if not IS_ORDERED:
            self._fence()
        for line in lines:
            line[ASKED] = asked
        self._fence()
        for worker, line in enumerate(lines):
            if line[ASLEEP]:
                self.transport.ring(worker)
        are_done = lambda: all([line[DONE] == asked for line in lines])  # noqa: C419, E731  # a list is faster
        if not self.waiting.wait(are_done, start_ns, self.tick_s, awaited=asked):
            return -1
        flags = 0
        for line in lines:
            flags |= line[FLAGS]
        return flags

    def finish(self, workers: Sequence[int], *, timeout_s: float | None = None) -> list[int]:
        """Wait until workers have done all they were asked.

        Args:
            workers: Which ones.
            timeout_s: How long the caller waits.

        Returns:
            Those that have; the others were lost.

        Raises:
            CallTimeout: `timeout_s` passed.
            WorkerDied: A worker ended.
            StepTimeout: A sub-environment overran its deadline.
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
        """Wait until `is_there`, and `attend` to the workers now and then.

        Raises:
            CallTimeout: `timeout_s` passed.
        """
        begun_ns = start_ns = time.perf_counter_ns()
        left_s = math.inf if timeout_s is None else timeout_s
        while not self.waiting.wait(is_there, start_ns, min(self.tick_s, left_s)):
            attend()
            start_ns = time.perf_counter_ns()
            if timeout_s is not None:
                left_s = max(0.0, timeout_s - (start_ns - begun_ns) / 1e9)
                if not left_s and not is_there():
                    raise errors.CallTimeout("recv", timeout_s)

    def settle(self) -> None:
        """Wait until nothing is under way, also where an interrupt struck before a worker was woken."""
        late = [worker for worker, line in enumerate(self.lines) if line[DONE] != line[ASKED]]
        for worker in late:
            if self.transport.server is not None:
                self.lines[worker][DONE] = self.lines[worker][ASKED]  # this thread does nothing by itself
            else:
                self.transport.ring(worker)
        if late or self.rebuilding:
            self.finish(self.every)

    def attend(self) -> set[int]:
        """Look after the workers when a wait ended without what it waited for; returns those that were lost."""
        self._check_overruns()
        ended = self._find_ended()
        for worker, why in ended.items():
            if self._is_closed:
                refuse("a call", Lifecycle.CLOSED, None)
            if self._options.on_failure == "raise" or self._spec is None:
                raise why
            self.spend(worker, why)
            why.args = (why.summary,)  # without the advice to have it replaced
            self.lost.update(dict.fromkeys(self.spans[worker], why))
            self.replace(worker)
        return set(ended)

    def send(self, verb: Verb, messages: Mapping[int, Any], generation: int = 0) -> None:
        """Ask workers to do what their mail says.

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
        """Wait for whatever was interrupted, and for successors: until then, the mail of workers must stay."""
        while not set(self.finish(workers)).issuperset(workers) or self.rebuilding.intersection(workers):
            self.await_rebuilt(workers)

    def replies(self, workers: Sequence[int]) -> dict[int, Reply]:
        """Return what workers that are done report beyond the arrays.

        Raises:
            EnvfleetError: What a worker could not do.
        """
        found: dict[int, Reply] = {}
        for worker in workers:
            flags = self.lines[worker][FLAGS]
            if flags & board.MAIL:
                reply = self.reply(worker, 0)
                if flags & board.ERROR:
                    raise reply
                found[worker] = reply
        return found

    def reply(self, worker: int, slot: int) -> Any:
        """Return what a worker has left in a slot of its mail.

        Raises:
            EnvfleetError: It cannot be read here.
        """
        try:
            return self.transport.replies[worker].get(slot)
        except Exception as error:
            raise errors.EnvfleetError(
                f"what worker {worker} reported of sub-environments {list(self.spans[worker])} cannot be read in this "
                f"process ({type(error).__name__}: {error}): have them return values that pickle and unpickle, and "
                "whose classes this process can import"
            ) from error

    # ------------------------------------------------------------------------------------ building, replacing

    def build(self) -> list[GroupInfo]:
        """Start all workers and have them build their sub-environments."""
        self.transport.start(self._options.start_timeout_s)
        for worker, plan in enumerate(self._plans):
            self.transport.requests.put(worker, plan)
        self.ask(self.every, Verb.BUILD)
        self.finish(self.every)
        return [reply.value for reply in self.replies(self.every).values()]

    def attach(self, spec: ArraysSpec) -> None:
        """Have every worker take its rows of the arrays."""
        self.send(Verb.ATTACH, dict.fromkeys(self.every, spec))
        self.finish(self.every)
        self._spec = spec

    def replace(self, worker: int, rng_states: tuple[Any, ...] = ()) -> None:
        """Start another worker; it builds while others go on, and is awaited when its rows are needed."""
        plan = self._plans[worker] = self._plans[worker].successor(rng_states)
        for place, row in enumerate(plan.rows):
            if not rng_states or rng_states[place] is None:  # else the generator goes on
                self.seeds[row] = plan.derive_seed(place)
        self.rebuilding.add(worker)
        self.ended[worker] = 0
        self._seen.pop(worker, None)
        self.transport.replace(worker, plan)
        self.transport.requests.put(worker, plan)
        self.ask([worker], Verb.BUILD)

    def await_rebuilt(self, workers: Iterable[int], timeout_s: float | None = None) -> None:
        """Wait until successors among `workers` can work.

        Raises:
            CallTimeout: Their sub-environments were not built within `timeout_s`.
        """
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        for worker in sorted(self.rebuilding.intersection(workers)):
            while worker in self.rebuilding:
                left_s = None if timeout_s is None else max(0.0, deadline_s - time.monotonic())
                if not self.finish([worker], timeout_s=left_s):
                    continue  # it ended, too, and there is another
                self.replies([worker])
                self.transport.requests.put(worker, self._spec)
                self.ask([worker], Verb.ATTACH)
                if self.finish([worker]):
                    self.rebuilding.discard(worker)

    def recycle(self, worker: int, rng_states: tuple[Any, ...]) -> None:
        """Close a worker whose rows have ended, and start another."""
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
                f"{len(self._spent)} restarts within the last hour, max_restarts={self._options.max_restarts}: mend "
                f"the environment or raise max_restarts. The last failure: {cause}"
            ) from cause
        self._spent.append(now)
        self.restarts[worker] += 1

    # ------------------------------------------------------------------------------------------------ watching

    def _check_overruns(self) -> None:
        """End workers that have been at one place for too long, after a look at their stacks."""
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
        """Return the error for a worker that has been at one place for so long, if that is too long."""
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
        how = f"was busy outside of any sub-environment for {took_s:.0f} s, as if it was stopped"
        return errors.WorkerDied(worker, rows, None, self.transport.pid(worker), how=how)

    def _find_ended(self) -> dict[int, errors.EnvfleetError]:
        """Return the workers that have ended, and why."""
        found: dict[int, errors.EnvfleetError] = {}
        for worker in self.transport.ended():
            rows, row = self.spans[worker], self.lines[worker][board.ROW] - 1
            exitcode, how = self.transport.how_ended(worker)
            died = errors.WorkerDied(
                worker,
                rows,
                exitcode,
                self.transport.pid(worker),
                env_index=rows[row] if 0 <= row < len(rows) else None,
                rows=self._describe_rows(self.seeds, rows),
                how=how,
            )
            found[worker] = self._overruns.pop(worker, died)
        return found

    # ------------------------------------------------------------------------------------------------- closing

    def abort(self) -> None:
        """End all workers by force; whoever waits for them is told that the fleet was closed."""
        self._is_closed = True
        for worker in self.every:
            self.transport.kill(worker)

    def close(self, timeout_s: float) -> list[Reply]:
        """Ask the workers to close, end those that do not in time, release everything; returns what they report."""
        self._is_closed = True
        deadline_s = time.monotonic() + timeout_s
        replies: list[Reply] = []
        try:
            if timeout_s > 0 or not self.transport.can_kill:  # who cannot be ended leaves when it reads this
                left = alive = [worker for worker in self.every if worker not in self.transport.ended()]
                asked = self.ask(alive, Verb.CLOSE)

                def under_way() -> list[int]:
                    return [worker for worker in left if self.lines[worker][DONE] != asked]

                while left and time.monotonic() < deadline_s:
                    left_s = deadline_s - time.monotonic()
                    self.waiting.wait(lambda: not under_way(), time.perf_counter_ns(), left_s)
                    left = [worker for worker in under_way() if worker not in self.transport.ended()]
                replies = list(self.replies([w for w in alive if self.lines[w][DONE] == asked]).values())
        except BaseException:
            deadline_s = 0.0  # Ctrl-C: who closes no faster is ended by force
            raise
        finally:
            self.transport.close(max(0.0, deadline_s - time.monotonic()))
        return replies
