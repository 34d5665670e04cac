"""The thread backend: one thread per group. Helps where stepping releases the GIL, and on free-threaded Python."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envfleet.core.arrays import ArraysSpec, FleetArrays, PlaceWord
from envfleet.core.checks import check_distinct
from envfleet.core.env_group import EnvGroup
from envfleet.core.failures import StepInterrupted, build_error, make_failure
from envfleet.core.group import GroupInfo
from envfleet.core.layout import SpaceLayout
from envfleet.core.messages import ALL_ROWS, Completion, Reply, Request, Verb
from envfleet.core.serve import Server, serve
from envfleet.core.transport import GroupPlan
from envfleet.errors import EnvfleetError, Failure, StartTimeout, SubEnvError

IDLE_WAIT_S = 0.2
"""What an idle thread may take to end, however short the time its fleet was given to close."""

RAISING_WAIT_S = 0.0005
"""How often a thread looks whether the exception that the fleet decided to raise has been raised."""


class _GuardedLine:
    """A progress line whose row cannot be left while an exception for it is on its way.

    Whoever takes the token of a row decides: the thread that leaves it, after which nobody may raise, or the fleet that
    raises, whom the thread then waits for. Nothing here is a `with`: the exception may come between any two calls.

    Args:
        line: The progress line.
    """

    def __init__(self, line: Any) -> None:
        self._line = line
        self._tokens: list[None] = []
        self._is_raised = False
        self.is_abandoned = False  # another thread writes this line now

    def __setitem__(self, word: int, value: int) -> None:
        if self.is_abandoned:
            return
        if word == PlaceWord.ROW and self._line[word]:
            self._leave()
        self._line[word] = value
        if word == PlaceWord.ROW and value:
            self._is_raised = False
            self._tokens.append(None)

    def _leave(self) -> None:
        try:
            self._tokens.pop()
        except IndexError:
            while not self._is_raised:
                if self.is_abandoned:
                    return
                time.sleep(RAISING_WAIT_S)
            _raise_in(threading.get_ident(), None)  # if it is not here yet, it is too late

    def guard(self, turns: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Leave each row before the next turn is taken, so that an exception until then costs no turn."""
        return _GuardedTurns(self, turns)

    def interrupt(self, ident: int) -> None:
        """Raise `StepInterrupted` in the thread at its next bytecode, if it still is where the fleet saw it."""
        taken: list[None] = []
        try:
            taken.extend(map(list.pop, (self._tokens,)))  # in one call, between whose halves Ctrl-C cannot come
            if PlaceWord.place(self._line) == self._line[PlaceWord.INTERRUPT]:
                _raise_in(ident, StepInterrupted)
        except IndexError:
            return
        finally:
            if taken:
                self._is_raised = True  # whatever came between: the thread waits for this


class _GuardedTurns:
    """See `_GuardedLine.guard`; no generator, which would end with the first exception."""

    def __init__(self, line: _GuardedLine, turns: Iterator[tuple[Any, ...]]) -> None:
        self._line, self._turns = line, turns

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self

    def __next__(self) -> tuple[Any, ...]:
        self._line[PlaceWord.ROW] = 0
        return next(self._turns)


def _raise_in(ident: int, error: type[BaseException] | None) -> None:
    """Raise `error` in a thread at its next bytecode; `None` takes one back that has not come yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(ident), None if error is None else ctypes.py_object(error)
    )


class _Worker:
    """One thread, its inbox, and the switch that makes an abandoned one fall silent."""

    def __init__(
        self,
        plan: GroupPlan,
        shared: Mapping[str, Any],
        outbox: queue.SimpleQueue[tuple[_Worker, Completion]],
    ) -> None:
        self.index, self.plan, self.outbox = plan.options.worker, plan, outbox
        self._shared = shared
        self.inbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self.is_abandoned = False
        self._group: EnvGroup | None = None
        self._line: _GuardedLine | None = None
        self.thread = threading.Thread(target=self._run, name=f"envfleet-{self.index}", daemon=True)

    def _run(self) -> None:
        options = self.plan.options
        try:
            self._group = group = EnvGroup(self.plan.builders, options, self._shared)
            reply = Reply(value=group.describe())
        except SubEnvError as error:
            reply = Reply(failures=list(error.failures))
        except BaseException as error:  # noqa: BLE001 - whatever goes wrong here must reach the owner
            reply = Reply(failures=[make_failure(error, verb="make", env_index=options.first_index, worker=self.index)])
        self._complete(0, ALL_ROWS, reply)
        if not reply.failures:
            with contextlib.suppress(StepInterrupted):  # abandoned: see `abandon`
                serve(Server(group, self.index, options.first_index, self._complete), self.inbox.get)

    def attach(self, spec: ArraysSpec, buffer: Any) -> None:
        """Give the group, which is built and waits, its arrays."""
        rows = slice(self.plan.rows.start, self.plan.rows.stop)
        layouts = (SpaceLayout(spec.observation_space), SpaceLayout(spec.action_space))
        arrays = FleetArrays.bind(spec, buffer, rows)
        if self._group is not None:
            self._group.attach(arrays, layouts)
            if self.plan.options.step_timeout_s is not None:
                self._line = _GuardedLine(arrays.progress[self.index])
                self._group.guard(self._line, self._line.guard)

    def _complete(self, seq: int, row: int, reply: Reply | None) -> None:
        self.outbox.put((self, Completion(self.index, seq, row, reply)))

    def abandon(self) -> None:
        """Let go of a stuck thread: should it ever go on, it writes nothing and ends."""
        self.is_abandoned = True
        if self._group is not None:
            self._group.is_abandoned = True
        if self._line is not None:
            self._line.is_abandoned = True
        self.inbox.put(None)
        _raise_in(self.thread.ident or 0, StepInterrupted)

    def interrupt(self) -> None:
        """Raise inside the sub-environment that the fleet wants interrupted, if it still runs."""
        if self._line is not None:
            self._line.interrupt(self.thread.ident or 0)


class ThreadTransport:
    """Runs each group in a thread of this process.

    A thread cannot be killed: one that stays stuck after an interrupt is abandoned (it is a daemon thread, and nothing
    it completes is looked at any more).

    Args:
        plans: One per worker.
        shared: The fleet's shared data by name.
    """

    name = "thread"

    def __init__(self, plans: Sequence[GroupPlan], shared: Mapping[str, Any]) -> None:
        self._plans, self._shared = list(plans), shared
        self.num_workers = len(self._plans)
        self._outbox: queue.SimpleQueue[tuple[_Worker, Completion]] = queue.SimpleQueue()
        self._deaths: list[Completion] = []
        self._workers: list[_Worker] = []

    def start(self, timeout_s: float) -> list[GroupInfo]:
        """Start the threads and build the groups in them, all at once."""
        self._workers = [_Worker(plan, self._shared, self._outbox) for plan in self._plans]
        for worker in self._workers:
            worker.thread.start()
        infos = self._await_built(self._workers, timeout_s)
        check_distinct([identity for info in infos for identity in info.identities])
        return infos

    def attach(self, spec: ArraysSpec) -> FleetArrays:
        """Allocate the arrays in this process."""
        self._spec, self._buffer = spec, spec.block_layout().allocate()
        for worker in self._workers:
            worker.attach(spec, self._buffer)
        return FleetArrays.bind(spec, self._buffer)

    def _await_built(self, workers: Sequence[_Worker], timeout_s: float) -> list[GroupInfo]:
        deadline_s = time.monotonic() + timeout_s
        replies: dict[int, Reply] = {}
        while len(replies) < len(workers):
            try:
                worker, completion = self._outbox.get(timeout=max(deadline_s - time.monotonic(), 0))
            except queue.Empty:
                late = [worker.index for worker in workers if worker.index not in replies]
                raise StartTimeout(late, timeout_s, "".join(self.stack(index) for index in late)) from None
            if worker in workers and completion.reply is not None:
                replies[worker.index] = completion.reply
        failures = [failure for worker in workers for failure in replies[worker.index].failures]
        if failures:
            raise build_error(failures)
        return [replies[worker.index].value for worker in workers]

    def rows_view(self, rows: slice) -> FleetArrays:
        """The arrays restricted to `rows`."""
        return FleetArrays.bind(self._spec, self._buffer, rows)

    @property
    def step_here(self) -> None:
        """The workers are elsewhere."""
        return None

    def submit(self, worker: int, request: Request) -> Sequence[Completion]:
        """Put the request into the worker's inbox."""
        self._workers[worker].inbox.put(request)
        return ()

    def wait(self, timeout_s: float | None) -> Sequence[Completion]:
        """Take what is in the outbox, waiting for the first."""
        if self._deaths:
            deaths, self._deaths = self._deaths, []
            return deaths
        found: list[Completion] = []
        try:
            worker, completion = self._outbox.get(timeout=timeout_s)
            while True:
                if not worker.is_abandoned:
                    found.append(completion)
                worker, completion = self._outbox.get_nowait()
        except queue.Empty:
            return found

    def restart(self, worker: int, lost: str | None, timeout_s: float) -> None:
        """Start a new thread in the place of an abandoned one."""
        plan = self._plans[worker] = self._plans[worker].again(lost)
        replacement = _Worker(plan, self._shared, queue.SimpleQueue())
        replacement.thread.start()
        shared_outbox, self._outbox = self._outbox, replacement.outbox
        try:
            self._await_built([replacement], timeout_s)
        except BaseException:
            replacement.abandon()
            raise
        finally:
            self._outbox = replacement.outbox = shared_outbox
        replacement.attach(self._spec, self._buffer)
        self._workers[worker] = replacement

    def can_look(self, worker: int) -> bool:
        """Always: threads write into the fleet's own memory."""
        return True

    def interrupt(self, worker: int) -> None:
        """Raise inside the stuck sub-environment; takes effect when it next runs Python code."""
        self._workers[worker].interrupt()

    def kill(self, worker: int, why: EnvfleetError) -> None:
        """Abandon the thread."""
        self._workers[worker].abandon()
        self._deaths.append(Completion(worker, 0, ALL_ROWS, death=why))

    def stack(self, worker: int) -> str:
        """The thread's Python stack."""
        frame = sys._current_frames().get(  # noqa: SLF001 - how the standard library offers it
            self._workers[worker].thread.ident or 0
        )
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def place(self, worker: int) -> str:
        """A thread."""
        return "a thread of this process"

    @property
    def note(self) -> str:
        """Nothing: the plan says it all."""
        return ""

    def pid(self, worker: int) -> int:
        """This process."""
        return os.getpid()

    def close(self, timeout_s: float) -> list[Failure]:
        """Ask every thread to close its sub-environments; abandon those that do not answer in time."""
        failures: list[Failure] = []
        deadline_s = time.monotonic() + timeout_s
        for worker in self._workers:
            worker.inbox.put(Request(Verb.CLOSE, -1, payload=timeout_s))
        for worker in self._workers:
            worker.thread.join(max(deadline_s - time.monotonic(), IDLE_WAIT_S))
            if worker.thread.is_alive():
                worker.abandon()
        while not self._outbox.empty():
            worker, completion = self._outbox.get_nowait()
            if completion.seq == -1 and completion.reply is not None and not worker.is_abandoned:
                failures += completion.reply.failures
        return failures
