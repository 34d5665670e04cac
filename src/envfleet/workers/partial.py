"""Steps of some rows while others wait: what `send` and `recv` need beyond a step of all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from envfleet.errors import EnvfleetError
from envfleet.fleet.engine import Rows
from envfleet.fleet.infos import SparseInfos
from envfleet.workers.arrays import FleetArrays
from envfleet.workers.board import ASKED, DONE, MAIL, Verb
from envfleet.workers.crew import Crew
from envfleet.workers.env_group import Reply

_LOOK_NS = 1_000_000_000
"""How often to look after the workers while rows keep coming."""


class Loss(NamedTuple):
    """Why a row has no result of its own, and the generation that holds its last observation."""

    why: EnvfleetError
    before: int


class Collected(NamedTuple):
    """Rows that have stepped.

    Attributes:
        rows: Which ones.
        replies: Everything that workers report and nobody has seen yet, of other rows, too.
        infos: Of these rows, by index.
        lost: Those that the owner has to answer.
    """

    rows: Rows
    replies: list[Reply]
    infos: SparseInfos
    lost: dict[int, Loss]


class PartialSteps:
    """Rows that were sent to step by themselves, until they are collected.

    Rows that are all rows of a worker step with one plain request; others have numbers of their own.

    Args:
        crew: The workers.
        arrays: Those of the fleet.
        batch_size: Rows that `recv` waits for.

    Attributes:
        worker_of: The worker of each row, int64 `(num_envs,)`.
    """

    def __init__(self, crew: Crew, arrays: FleetArrays, batch_size: int) -> None:
        num_envs = len(arrays.row_asked)
        self._crew, self._arrays, self._batch_size = crew, arrays, batch_size
        self.worker_of = np.repeat(crew.every, [len(rows) for rows in crew.spans])
        self._alone = np.zeros(num_envs, np.bool_)  # under way by their own numbers
        self._there = np.zeros(num_envs, np.bool_)  # done, or to be answered by the owner
        self._numbers = np.zeros(num_envs, np.int64)
        self._befores = np.zeros(num_envs, np.int64)
        self._count = self._due_ns = 0
        self.forget()

    def __bool__(self) -> bool:
        return bool(self._plain) or bool(self._alone.any()) or bool(self._there.any())

    def forget(self) -> None:
        """Forget everything, after all workers have done what they were asked."""
        self._alone[:] = self._there[:] = False
        self._plain: dict[int, int] = {}  # worker -> what it was asked
        self._news: list[Reply] = []
        self._infos: dict[int, list[dict[str, Any]]] = {}
        self._lost: dict[int, Loss] = {}

    def workers_of(self, rows: Rows) -> list[int]:
        """Return the workers that hold some rows."""
        workers: list[int] = np.unique(self.worker_of[rows]).tolist()
        return workers

    def take_over(self, generation: int) -> None:
        """Take over a step of all that is under way, of which some rows are to be collected before others."""
        self._count += 1
        self._numbers[:], self._befores[:] = self._count, 1 - generation
        self._plain = {worker: line[ASKED] for worker, line in enumerate(self._crew.lines)}

    def send(self, rows: Rows, objects: Sequence[Sequence[Any]], generation: int) -> None:
        """Have rows step whose actions lie in the arrays; `objects` are action leaves that do not."""
        crew, places = self._crew, {row: k for k, row in enumerate(rows.tolist())}
        for row, place in places.items() if objects else ():  # first of all, because it may be refused
            crew.transport.requests.put(len(crew.every) + row, [[leaf[place]] for leaf in objects])
        if not self:
            self._due_ns = time.perf_counter_ns() + _LOOK_NS
        self._count += 1
        self._numbers[rows], self._befores[rows] = self._count, generation
        left, is_ready = rows, False
        while not is_ready:
            for row in [row for row in left.tolist() if row in crew.lost]:  # it is told so in place of its step
                self._lose(row)
            left = rows[~self._there[rows]]
            is_ready = crew.rebuilding.isdisjoint(self.workers_of(left))
            crew.await_rebuilt(self.workers_of(left))  # while others may be lost
        alone = []
        for worker in self.workers_of(left):
            mine = left[self.worker_of[left] == worker]
            if len(mine) == len(crew.spans[worker]) <= self._batch_size and not objects:
                self._plain[worker] = crew.ask([worker], Verb.STEP, generation)
            else:
                alone += mine.tolist()
        if not alone:
            return
        self._arrays.row_asked[alone] = self._count
        self._alone[alone] = True
        crew.ask(self.workers_of(np.array(alone)), Verb.STEP_ROWS, generation)

    def collect(self, count: int | None, rows: Rows | None, timeout_s: float | None) -> Collected:
        """Wait for `count` rows, or for `rows`; the rest is `Engine.collect`'s."""
        crew = self._crew

        def is_there() -> bool:
            self._look()
            return bool(self._there[rows].all() if rows is not None else np.count_nonzero(self._there) >= (count or 0))

        now_ns = time.perf_counter_ns()
        if now_ns > self._due_ns:  # others that keep coming must hide nobody who hangs or has ended
            crew.attend()
            self._due_ns = now_ns + _LOOK_NS
        crew.wait(is_there, crew.attend, timeout_s)
        if rows is None:
            found = np.flatnonzero(self._there)
            rows = found[np.argsort(self._numbers[found], kind="stable")[:count]]  # who was sent first comes first
            rows = np.sort(rows) if len(rows) == len(self._there) else rows
        self._there[rows] = False
        chosen = rows.tolist()
        infos = [(row, info) for row in chosen for info in self._infos.pop(row, ())]
        lost = {row: self._lost.pop(row) for row in chosen if row in self._lost}
        news, self._news = self._news, []
        return Collected(rows, news, infos, lost)

    def _look(self) -> None:
        """Take in what workers have done, and what those that were lost can do no more."""
        crew, arrays = self._crew, self._arrays
        if crew.lost:
            plain = set(self._plain)
            for row in list(crew.lost):
                if self._alone[row] or self.worker_of[row] in plain:
                    self._plain.pop(int(self.worker_of[row]), None)
                    self._lose(row)
        done = self._alone & (arrays.row_done == arrays.row_asked)
        if done.any():
            for row in np.flatnonzero(done & (arrays.row_flags & MAIL != 0)).tolist():
                worker = int(self.worker_of[row])
                self._hear(crew.reply(worker, 1 + row - crew.spans[worker].start))
            self._there |= done
            self._alone &= ~done
        for worker, asked in list(self._plain.items()):
            if crew.lines[worker][DONE] == asked:
                for reply in crew.replies([worker]).values():
                    self._hear(reply)
                self._there[crew.spans[worker]] = True
                del self._plain[worker]

    def _hear(self, reply: Reply) -> None:
        self._news.append(reply)
        for row, info in reply.infos:
            self._infos.setdefault(row, []).append(info)

    def _lose(self, row: int) -> None:
        """Have the owner answer a row whose worker was lost."""
        self._alone[row], self._there[row] = False, True
        self._lost[row] = Loss(self._crew.lost.pop(row), int(self._befores[row]))
