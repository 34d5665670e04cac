"""Steps of some rows, for `send` and `recv`.

Problem. Rows are sent and collected in any grouping, while their workers hold several rows each and may be lost.

What does not work. One request number per worker: a worker could not take new rows before it has finished all others.
A queue of results: Ctrl-C between two byte codes could lose an entry.

Solution. Each row has a pair of numbers in shared memory, `row_asked` and `row_done`; a row is under way while they
differ. A worker steps every such row when it is woken. Rows that are all rows of a worker use the plain request of a
full step, which is faster. The owner looks at these numbers (`_look`) until enough rows are there; rows of a lost
worker count as there, and the owner answers them. `wait` selects rows and changes nothing, so a timeout loses
nothing; `take` removes them.

What remains. Of the rows that have finished, those that were sent first are returned first.

See ADR 19 and ADR 20.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from envfleet.errors import EnvfleetError
from envfleet.fleet.engine import Rows
from envfleet.workers.arrays import FleetArrays
from envfleet.workers.board import ASKED, DONE, FLAGS, MAIL, Verb
from envfleet.workers.messages import Reply
from envfleet.workers.worker_pool import WorkerPool

_LOOK_NS = 1_000_000_000
"""Interval at which workers are checked while results keep arriving."""


class Collected(NamedTuple):
    """Results of rows that have stepped.

    Attributes:
        replies: Replies of their workers.
        lost: Rows of lost workers, each with the reason; the owner reports their end.
    """

    replies: list[Reply]
    lost: dict[int, EnvfleetError]


class PartialSteps:
    """Rows that were sent and not yet received.

    Args:
        pool: Workers of the fleet.
        arrays: Arrays of the fleet.
        batch_size: Number of rows that `recv` waits for.

    Attributes:
        pool: Workers of the fleet.
        worker_of: Worker of each row, int64 `(num_envs,)`.
    """

    def __init__(self, pool: WorkerPool, arrays: FleetArrays, batch_size: int) -> None:
        num_envs = len(arrays.row_asked)
        self.pool, self._arrays, self._batch_size = pool, arrays, batch_size
        self.worker_of = np.repeat(pool.every, [len(rows) for rows in pool.spans])
        self._alone = np.zeros(num_envs, np.bool_)  # under way by their own numbers
        self._there = np.zeros(num_envs, np.bool_)  # done, or to be answered by the owner
        self._numbers = np.zeros(num_envs, np.int64)
        self._count = self._due_ns = 0
        self.forget()

    def __bool__(self) -> bool:
        return bool(self._plain) or bool(self._alone.any()) or bool(self._there.any())

    def forget(self) -> None:
        """Drop all rows, once all workers have completed their requests."""
        self._alone[:] = self._there[:] = False
        self._plain: dict[int, int] = {}  # worker -> what it was asked
        self._news: dict[int, Reply | EnvfleetError] = {}
        self._lost: dict[int, EnvfleetError] = {}

    def workers_of(self, rows: Rows) -> list[int]:
        """Return the workers that hold some rows."""
        workers: list[int] = np.unique(self.worker_of[rows]).tolist()
        return workers

    def take_over(self) -> None:
        """Convert a pending full step, so that some rows can be collected before others."""
        self._count += 1
        self._numbers[:] = self._count
        self._plain = {worker: line[ASKED] for worker, line in enumerate(self.pool.lines)}

    def send(self, rows: Rows, objects: Sequence[Sequence[Any]], generation: int) -> None:
        """Start to step rows with actions from the arrays; `objects` are action leaves that are Python objects."""
        pool, places = self.pool, {row: k for k, row in enumerate(rows.tolist())}
        for row, place in places.items() if objects else ():  # first of all, because it may be refused
            pool.transport.requests.put(len(pool.every) + row, [[leaf[place]] for leaf in objects])
        if not self:
            self._due_ns = time.perf_counter_ns() + _LOOK_NS
        self._count += 1
        self._numbers[rows] = self._count
        left, is_ready = rows, False
        while not is_ready:
            for row in [row for row in left.tolist() if row in pool.lost]:  # it reports its loss instead of stepping
                self._lose(row)
            left = rows[~self._there[rows]]
            is_ready = pool.rebuilding.isdisjoint(self.workers_of(left))
            pool.await_rebuilt(self.workers_of(left))  # while others may be lost
        alone = []
        for worker in self.workers_of(left):
            worker_rows = left[self.worker_of[left] == worker]
            if len(worker_rows) == len(pool.spans[worker]) <= self._batch_size and not objects:
                self._plain[worker] = pool.ask([worker], Verb.STEP, generation)
            else:
                alone += worker_rows.tolist()
        if not alone:
            return
        self._arrays.row_asked[alone] = self._count
        self._alone[alone] = True
        pool.ask(self.workers_of(np.array(alone)), Verb.STEP_ROWS, generation)

    def wait(self, count: int | None, rows: Rows | None, timeout_s: float | None) -> Rows:
        """Wait for `count` rows, or for `rows`, and return the rows that can be taken.

        Raises:
            CallTimeout: `timeout_s` passed.
        """
        pool = self.pool

        def is_there() -> bool:
            self._look()
            return bool(self._there[rows].all() if rows is not None else np.count_nonzero(self._there) >= (count or 0))

        now_ns = time.perf_counter_ns()
        if now_ns > self._due_ns:  # a steady stream of results must not mask a hung or dead worker
            pool.attend()
            self._due_ns = now_ns + _LOOK_NS
        pool.wait(is_there, pool.attend, timeout_s)
        if rows is None:
            ready_rows = np.flatnonzero(self._there)
            rows = ready_rows[np.argsort(self._numbers[ready_rows], kind="stable")[:count]]  # in the order of sending
            rows = np.sort(rows) if len(rows) == len(self._there) else rows
        return rows

    def lost_among(self, rows: Rows) -> list[int]:
        """Return the lost ones of some rows."""
        return [row for row in rows.tolist() if row in self._lost]

    def take(self, rows: Rows) -> Collected:
        """Remove rows that `wait` returned, and return their results."""
        self._there[rows] = False
        chosen = rows.tolist()
        replies = []
        for row in [row for row in chosen if row in self._news] if self._news else ():
            news = self._news.pop(row)
            if isinstance(news, EnvfleetError):
                raise news
            replies.append(news)
        lost = {row: self._lost.pop(row) for row in self.lost_among(rows)}
        for row in lost:  # its successor may have been lost too, before its episode was seen: one report is enough
            self.pool.lost.pop(row, None)
        return Collected(replies, lost)

    def _look(self) -> None:
        """Update the rows that workers have finished, and rows of lost workers."""
        pool, arrays = self.pool, self._arrays
        if pool.lost:
            plain = set(self._plain)
            for row in list(pool.lost):
                if self._alone[row] or self.worker_of[row] in plain:
                    self._plain.pop(int(self.worker_of[row]), None)
                    self._lose(row)
        done = self._alone & (arrays.row_done == arrays.row_asked)
        if done.any():
            for row in np.flatnonzero(done & (arrays.row_flags & MAIL != 0)).tolist():
                worker = int(self.worker_of[row])
                self._news.update(self._read([row], worker, 1 + row - pool.spans[worker].start))
            self._there |= done
            self._alone &= ~done
        for worker, asked in list(self._plain.items()):
            if pool.lines[worker][DONE] == asked:
                if pool.lines[worker][FLAGS] & MAIL:
                    self._news.update(self._read(pool.spans[worker], worker, 0))
                self._there[pool.spans[worker]] = True
                del self._plain[worker]

    def _read(self, rows: Sequence[int], worker: int, slot: int) -> dict[int, Reply | EnvfleetError]:
        """Return the reply or the error of a worker, by row."""
        try:
            reply = self.pool.reply(worker, slot)
        except EnvfleetError as error:
            reply = error
        if isinstance(reply, EnvfleetError) or len(rows) == 1:
            return dict.fromkeys(rows, reply)
        return dict(reply.by_row())

    def _lose(self, row: int) -> None:
        """Mark a row of a lost worker as finished."""
        self._alone[row], self._there[row] = False, True
        self._lost[row] = self.pool.lost.pop(row)
