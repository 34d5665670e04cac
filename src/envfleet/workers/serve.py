"""Worker loop: wait for a request, run it on the group of sub-environments, mark it as done."""

from __future__ import annotations

import dataclasses
import gc
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from envfleet.errors import EnvfleetError, Failure, InvalidArgument
from envfleet.workers import board
from envfleet.workers.arrays import ArraysSpec, FleetArrays
from envfleet.workers.board import ASKED, ASLEEP, COLUMNS, DONE, FLAGS, IS_ORDERED, MAIL, Verb
from envfleet.workers.columns import Table
from envfleet.workers.env_group import EnvGroup
from envfleet.workers.failures import make_failure
from envfleet.workers.memory import Mail
from envfleet.workers.messages import GroupPlan, Reply
from envfleet.workers.shared import Form

_VERBS = tuple(Verb)


class Place(NamedTuple):
    """Position of a worker in its fleet; `rows` is its slice of the shared arrays."""

    worker: int
    num_workers: int
    rows: range
    num_envs: int
    shared: Form


@dataclasses.dataclass
class WorkerContext:
    """Everything that connects a worker to its owner.

    Attributes:
        place: Position of the worker.
        lines: Words of all workers.
        owner: Words of the owner.
        requests: Mail from the owner: a slot per worker, then one per row of the fleet, then the table of columns.
        replies: Mail to the owner: one slot for whole requests, one per row of this worker.
        waiter: Waits of the worker.
        ring: Function that wakes the owner.
        map_arrays: Function that returns the worker's rows of the arrays.
        shared: The fleet's shared data by name.
        is_inline: True if the worker runs in the owner's thread.
        is_alone: True if the worker has a separate process.
    """

    place: Place
    lines: Sequence[board.Line]
    owner: board.Line
    requests: Mail
    replies: Mail
    waiter: board.Waiter
    ring: Callable[[], None]
    map_arrays: Callable[[ArraysSpec], FleetArrays]
    shared: Mapping[str, Any]
    is_inline: bool = False
    is_alone: bool = False


class Server:
    """Loop of a worker: carry out requests until it is asked to close.

    Args:
        context: Connection to the owner.

    Attributes:
        group: Its sub-environments, once they are built.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context, self._line = context, context.lines[context.place.worker]
        self._plan: GroupPlan
        self.group: Any = None  # an EnvGroup from BUILD on, before which nothing else is asked
        self._arrays: FleetArrays | None = None
        self._table, self._fence = 0, context.waiter.fence

    def run(self) -> None:
        """Serve the owner until it asks to close."""
        line, verb = self._line, Verb.BUILD
        while verb is not Verb.CLOSE:
            self._context.waiter.wait(lambda: line[ASKED] != line[DONE], time.perf_counter_ns())
            verb = self.answer()

    def answer(self) -> Verb:
        """Run the pending request."""
        context, line, group = self._context, self._line, self.group
        asked = line[ASKED]
        verb, generation = _VERBS[asked & 7], asked >> 3 & 1
        if line[board.TABLE] != self._table and self._arrays is not None:
            self._table = line[board.TABLE]
            try:
                table = context.requests.get(context.place.num_workers + context.place.num_envs)
            except Exception:  # noqa: BLE001  # a constant's class that only other workers can import
                table = Table([], [], [])  # all infos go by mail
            group.columns.learn(table)
        try:
            if verb is Verb.STEP:
                reply = group.step(generation)
                flags = self._columns_flag()
                if reply is not None:
                    flags |= self._post(0, reply, "step")
            else:
                flags = self._handle(verb, generation)
        except Exception as error:  # if this thread died silently, the owner would wait forever
            if context.is_inline:
                raise
            if not isinstance(error, EnvfleetError):
                trace, where = "".join(traceback.format_exception(error)), verb.name.lower()
                error = EnvfleetError(f"a worker failed outside of its sub-environments, in {where}:\n{trace}")
            context.replies.put(0, error)
            flags = MAIL | board.ERROR
        line[FLAGS] = flags
        if not IS_ORDERED:
            self._fence()
        line[DONE] = asked
        self._fence()
        awaited = context.owner[ASLEEP]  # the last of all sees, after the fence, that the others are done
        if awaited and (awaited != asked or all([one[DONE] == asked for one in context.lines])):  # noqa: C419
            context.ring()
        return verb

    def _columns_flag(self) -> int:
        return COLUMNS if self.group.columns.is_dirty else 0

    def _handle(self, verb: Verb, generation: int) -> int:
        """Run any request but a plain step; return the flags."""
        if self._arrays is not None:
            self._step_asked(self._arrays, generation)
        if verb is Verb.STEP_ROWS:
            return 0
        context = self._context
        reply = self._dispatch(verb, generation, None if verb is Verb.CLOSE else self._read(verb, context.place.worker))
        flags = self._columns_flag() if verb is Verb.STEP_BY_MAIL else 0
        return flags if reply is None else flags | self._post(0, reply, verb.name.lower())

    def _read(self, verb: Verb, slot: int) -> Any:
        worker = self._context.place.worker
        try:
            return self._context.requests.get(slot)
        except Exception as error:
            if verb is Verb.BUILD and isinstance(error, EnvfleetError):  # of a module that was imported for it
                raise
            kind = EnvfleetError if verb is Verb.RESET else InvalidArgument  # others may have been reset by now
            raise kind(
                f"an argument cannot be unpickled in worker {worker} ({type(error).__name__}: {error}): pass "
                "values that pickle and unpickle, of classes that workers can import"
            ) from error

    def _dispatch(self, verb: Verb, generation: int, message: Any) -> Reply | None:
        context = self._context
        if verb is Verb.BUILD:
            self._plan = message
            self.group = EnvGroup(message, context.shared, self._line, is_inline=context.is_inline)
            if context.is_alone:
                gc.freeze()  # no collection looks through imported modules again
            return Reply(value=self.group.describe())
        if verb is Verb.ATTACH:
            self._arrays = context.map_arrays(message)
            self.group.attach(message, self._arrays)
            self._arrays.row_done[...] = self._arrays.row_asked  # what was asked of a predecessor
            return None
        reply: Reply | None
        if verb is Verb.STEP_BY_MAIL:
            reply = self.group.step(generation, None, *message)
        elif verb is Verb.RESET:
            reply = self.group.reset(generation, message)
        elif verb is Verb.CALL:
            method, arguments = message
            reply = getattr(self.group, method)(*arguments)
        else:
            reply = Reply(failures=self.group.close() if self.group is not None else [])
        return reply

    def _step_asked(self, arrays: FleetArrays, generation: int) -> None:
        """Step the rows that were requested individually."""
        context = self._context
        for row in np.flatnonzero(arrays.row_asked != arrays.row_done).tolist():
            asked = int(arrays.row_asked[row])
            objects: Any = ()
            try:
                if self.group.has_object_actions:
                    objects = self._read(Verb.STEP_ROWS, context.place.num_workers + context.place.rows[row])
                reply = self.group.step(generation, [row], objects)
            except Exception as error:
                if context.is_inline:
                    raise
                blame = make_failure(error, verb="step", env_index=self._plan.rows[row], worker=self._plan.worker)
                reply = Reply(failures=[blame])
            flags = self._columns_flag()
            arrays.row_flags[row] = flags if reply is None else flags | self._post(1 + row, reply, "step")
            if not IS_ORDERED:
                self._fence()
            arrays.row_done[row] = asked
            self._fence()
            if context.owner[ASLEEP]:
                context.ring()

    def _post(self, slot: int, reply: Reply, verb: str) -> int:
        """Write a reply to the mail; a value that does not pickle becomes a failure of its sub-environment."""
        try:
            self._context.replies.put(slot, reply)
        except Exception as error:  # noqa: BLE001  # whatever a foreign __reduce__ may raise
            failures = self._find_unpicklable(reply, verb) or [self._blame(self._plan.rows.start, verb, error)]
            self._context.replies.put(slot, Reply(failures=failures))
        return MAIL

    def _find_unpicklable(self, reply: Reply, verb: str) -> list[Failure]:
        parts: list[tuple[int, Any]] = [*reply.infos, *reply.objects.items(), *reply.final_objects.items()]
        if isinstance(reply.value, list):
            parts += enumerate(reply.value, self._plan.rows.start)
        failures = []
        for index, part in parts:
            for name, value in _named_values(part):
                try:
                    cloudpickle.dumps(value)
                except Exception as error:  # noqa: BLE001  # whatever a foreign __reduce__ may raise
                    failures.append(self._blame(index, verb, error, name))
                    break
        return failures

    def _blame(self, index: int, verb: str, error: BaseException, name: str = "") -> Failure:
        what = TypeError(
            f"the result of {verb}{name and f' in {name}'} cannot be sent to the fleet's process "
            f"({type(error).__name__}: {error}): return values that pickle, or make the fleet with "
            'backend="serial" or "thread"'
        )
        return make_failure(what, verb=verb, env_index=index, worker=self._plan.worker)


def _named_values(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dicts, each with its path of keys, and last the value itself."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _named_values(part, f"{name}[{key!r}]")
    yield name, value
