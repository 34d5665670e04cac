"""The process backend: worker processes over one block of shared memory.

A step moves a 16-byte header down each worker's request pipe and a 16-byte record up the one completion pipe; actions
and results lie in the shared block. Everything else (infos that are no numbers, failures, results of `call`) follows
on the worker's reply pipe, announced by a flag in its record. Pipe writes of this size are atomic, and each is a
system call, which also orders the memory they speak of.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import math
import os
import pickle
import time
from collections.abc import Iterator, Sequence

from envfleet.core.arrays import ArraysSpec, FleetArrays
from envfleet.core.failures import build_error
from envfleet.core.group import GroupInfo
from envfleet.core.memory import SharedBlock, UnsizedBlock
from envfleet.core.messages import ALL_ROWS, Completion, Reply, Request, Verb
from envfleet.core.shared import SharedArrays
from envfleet.core.transport import GroupPlan
from envfleet.errors import EnvfleetError, Failure, FleetClosed, StartTimeout, WorkerDied
from envfleet.transports.backlog import Backlog
from envfleet.transports.foresight import check_plans
from envfleet.transports.launch import StartMethod, WorkerHandle, launch, require_descriptors, require_no_cuda
from envfleet.transports.link import Link, Start, WorkerLink
from envfleet.transports.patience import Patience
from envfleet.transports.wire import HAS_REPLY, RECORD

DESCRIPTORS_PER_WORKER = 8
"""Pipe ends, sentinel and stack file of a worker, with room for the moment in which it starts."""

STALL_S = 30.0
"""How long a worker may write nothing more of a reply that it began, or read nothing of a request while stopped."""

KILL_WAIT_S = 5.0
RETIRE_WAIT_S = 10.0


class ProcessTransport:
    """Runs each group in a process of its own.

    Args:
        plans: One per worker.
        shared: The fleet's shared data.
        start_method: `"forkserver"`, `"spawn"` or `"fork"`.

    Raises:
        InvalidArgument: The process may not open enough descriptors, cannot be forked, or the plans cannot be sent.
    """

    name = "process"

    def __init__(
        self, plans: Sequence[GroupPlan], shared: SharedArrays, start_method: StartMethod = "forkserver"
    ) -> None:
        require_descriptors(DESCRIPTORS_PER_WORKER * len(plans) + 16)
        require_no_cuda(start_method)
        check_plans(plans)
        self._plans, self._shared, self._start_method = list(plans), shared, start_method
        self.num_workers = len(self._plans)
        self._links: list[WorkerLink] = []
        self._block: SharedBlock | None = None
        self._reasons: dict[int, EnvfleetError] = {}
        self._early: list[Completion] = []
        self._records: collections.deque[tuple[int, ...]] = collections.deque()
        self._stall_s = STALL_S
        self._start_deadlines_s: dict[int, float] = {}  # of the workers that are awaited
        self._is_open = False

    def start(self, timeout_s: float) -> list[GroupInfo]:
        """Start the processes and build the groups in them, all at once."""
        self._open()
        deadline_s = time.monotonic() + timeout_s
        for link in self._connect(self._plans, timeout_s):
            self._links.append(link)
        for link in self._links:
            self._begin(link)
        return self._await_built([plan.options.worker for plan in self._plans], deadline_s, timeout_s)

    def _open(self) -> None:
        """Make what all workers share."""
        self._unsized = UnsizedBlock()
        self._done_fd, self._done_write = os.pipe()
        self._is_open = True
        os.set_blocking(self._done_fd, False)
        self._poller = Patience()
        self._poller.register(self._done_fd)
        self._backlog = Backlog(self._poller, self._give_up_stopped)

    def attach(self, spec: ArraysSpec) -> FleetArrays:
        """Allocate the arrays in shared memory; the workers map them before anything else."""
        self._spec = spec
        self._block = self._unsized.allocate(spec.block_layout().size_bytes)
        for link in self._links:
            link.send_spec(spec)
            self._backlog.add(link)
        return self.rows_view(slice(None))

    def _connect(self, plans: Sequence[GroupPlan], timeout_s: float) -> Iterator[WorkerLink]:
        """Start a worker for each plan; yields them in order."""
        for plan in plans:
            yield self._link_to(plan.options.worker, functools.partial(self._launch, plan.options.worker))

    def _link_to(self, worker: int, start: Start) -> Link:
        """Start a worker of this machine, with its ends of the pipes and the shared memory."""
        fds = [self._done_write, self._unsized.fd]
        if self._shared.fd is not None:
            fds.append(self._shared.fd)
        return Link(worker, fds, start)

    def _launch(self, worker: int, fds: list[int], ours: list[int]) -> WorkerHandle:
        others = [fd for link in self._links if isinstance(link, Link) for fd in (link.request_fd, link.reply_fd)]
        return launch(
            "envfleet.transports.worker:run",
            pickle.dumps(worker),
            fds,
            start_method=self._start_method,
            name=f"envfleet-{worker}",
            close_in_fork=[self._done_fd, *ours, *others],
        )

    def _begin(self, link: WorkerLink) -> None:
        """Watch a new worker, and have it build its group."""
        if link.handle.sentinel_fd >= 0:
            self._poller.register(link.handle.sentinel_fd)
        link.send_plan(self._plans[link.index], self._shared.layout)
        self._backlog.add(link)

    def _await_built(self, workers: Sequence[int], deadline_s: float, timeout_s: float) -> list[GroupInfo]:
        self._start_deadlines_s = dict.fromkeys(workers, deadline_s)
        try:
            replies = self._await_replies(workers, deadline_s, timeout_s)
        finally:
            self._start_deadlines_s = {}
        failures = [failure for worker in workers for failure in replies[worker].failures]
        if failures:
            raise build_error(failures)
        return [replies[worker].value for worker in workers]

    def _await_replies(self, workers: Sequence[int], deadline_s: float, timeout_s: float) -> dict[int, Reply]:
        replies: dict[int, Reply] = {}
        while len(replies) < len(workers):
            completions = self._poll(max(deadline_s - time.monotonic(), 0))
            if not completions and time.monotonic() >= deadline_s:
                late = [worker for worker in workers if worker not in replies]
                raise StartTimeout(late, timeout_s, "".join(self.stack(worker) for worker in late))
            for completion in completions:
                if completion.worker not in workers:
                    self._early.append(completion)
                elif completion.death is not None:
                    if completion.worker not in replies:  # else it ended because it could not build: it said why
                        raise completion.death
                elif completion.reply is not None:
                    replies[completion.worker] = completion.reply
        return replies

    def rows_view(self, rows: slice) -> FleetArrays:
        """The arrays restricted to `rows`."""
        if self._block is None:
            raise FleetClosed("the workers have no arrays: the fleet was closed, or never finished starting")
        return FleetArrays.bind(self._spec, self._block.buffer, rows)

    @property
    def step_here(self) -> None:
        """The workers are elsewhere."""
        return None

    def submit(self, worker: int, request: Request) -> Sequence[Completion]:
        """Write the request's header, and its payload if it has one, to the worker's pipe.

        What there is no room for is written by `wait`, in which whoever waits keeps time and hears of deaths.
        """
        link = self._links[worker]
        link.submit(request)
        if link.pipe() is not None:
            self._backlog.add(link)
        return ()

    def wait(self, timeout_s: float | None) -> Sequence[Completion]:
        """Read the completion pipe, watching for workers that end."""
        if self._early:
            early, self._early = self._early, []
            return early
        return self._poll(timeout_s)

    def _poll(self, timeout_s: float | None) -> list[Completion]:
        if self._backlog:
            timeout_s = self._backlog.look(timeout_s, self._stall_s)
        events = self._poller.wait(0 if self._records else timeout_s)
        found: list[Completion] = []
        ended: list[int] = []
        for fd, _ in events:
            if fd != self._done_fd and not self._backlog.send_on(fd):
                ended.append(fd)
        if events or self._records:
            self._read_records(found)  # also when only a sentinel spoke: what it completed before comes first
        for fd in ended:
            self._note_end(fd, found)
        return found

    def _read_records(self, found: list[Completion]) -> None:
        with contextlib.suppress(BlockingIOError):
            # One call reads and stores: Python raises Ctrl-C between any two, and what only was read would be lost.
            data = map(os.read, (self._done_fd,), (1 << 16,))
            self._records.extend(itertools.chain.from_iterable(map(RECORD.iter_unpack, data)))
        while self._records:  # one stays until its reply is read: Ctrl-C may come between
            record = worker, flags, row, seq = self._records[0]
            reply = None
            if flags & HAS_REPLY and not self._links[worker].is_dead:
                reply = self._read_reply(worker, record)
            self._records.popleft()
            if reply is not None:
                self._links[worker].forget_reply()
            if not self._links[worker].is_dead and (reply is not None or not flags & HAS_REPLY):
                found.append(Completion(worker, seq, row, reply))

    def _read_reply(self, worker: int, record: tuple[int, ...]) -> Reply | None:
        link = self._links[worker]
        left_s = max(self._start_deadlines_s.get(worker, math.inf) - time.monotonic(), 0)
        stall_s = min(self._stall_s, left_s)
        try:
            return link.read_reply(record, stall_s)
        except TimeoutError:
            how = f"was killed, as it stopped in the middle of a reply and wrote no more for {stall_s:g} s"
            rows = self._plans[worker].rows
            self.kill(worker, WorkerDied(worker, rows, None, link.handle.pid, how=how))
            return None

    def _give_up_stopped(self, link: WorkerLink, stall_s: float) -> None:
        pid = link.handle.pid
        how = (
            "was killed, as it is stopped (by SIGSTOP, job control or a debugger) and read nothing more of a request "
            f"for {stall_s:g} s: `kill -CONT {pid}` in time lets it go on"
        )
        self.kill(link.index, WorkerDied(link.index, self._plans[link.index].rows, None, pid, how=how))

    def _note_end(self, sentinel_fd: int, found: list[Completion]) -> None:
        for link in self._links:
            if link.handle.sentinel_fd == sentinel_fd and not link.is_dead:
                link.is_dead = True
                self._poller.unregister(sentinel_fd)
                self._backlog.remove(link)
                why = self._reasons.pop(link.index, None) or self._describe_death(link)
                found.append(Completion(link.index, 0, ALL_ROWS, death=why))

    def _describe_death(self, link: WorkerLink) -> WorkerDied:
        return WorkerDied(link.index, self._plans[link.index].rows, link.handle.exitcode(), link.handle.pid)

    def restart(self, worker: int, lost: str | None, timeout_s: float) -> None:
        """Start a new process in the place of one that ended, or that is ended now in peace."""
        if not self._links[worker].is_dead:
            self._retire(worker)
        self._links[worker].close()
        plan = self._plans[worker] = self._plans[worker].again(lost)
        deadline_s = time.monotonic() + timeout_s
        (link,) = self._connect([plan], timeout_s)
        self._links[worker] = link
        self._begin(link)
        link.send_spec(self._spec)
        self._backlog.add(link)
        self._await_built([worker], deadline_s, timeout_s)

    def _retire(self, worker: int) -> None:
        """Have an idle worker close its sub-environments and end."""
        link = self._links[worker]
        self.submit(worker, Request(Verb.CLOSE, 0, payload=RETIRE_WAIT_S))
        if not link.handle.join(RETIRE_WAIT_S):
            link.handle.kill()
            link.handle.join(KILL_WAIT_S)
        last_words: list[Completion] = []
        self._read_records(last_words)
        self._early += [completion for completion in last_words if completion.worker != worker]
        if link.handle.sentinel_fd >= 0:
            self._poller.unregister(link.handle.sentinel_fd)
        self._backlog.remove(link)
        link.is_dead = True  # should its successor not start, nobody must ask this one to close

    def can_look(self, worker: int) -> bool:
        """See `Transport.can_look`."""
        return self._links[worker].can_look()

    def interrupt(self, worker: int) -> None:
        """Raise inside the stuck sub-environment, by a signal."""
        self._links[worker].interrupt()

    def kill(self, worker: int, why: EnvfleetError) -> None:
        """End the process now."""
        self._reasons.setdefault(worker, why)  # whoever looks again before it has ended finds no better reason
        self._links[worker].handle.kill()

    def stack(self, worker: int) -> str:
        """The Python stacks of the process's threads, also while it is stuck in C code."""
        is_ending = self._links[worker].is_dead or worker in self._reasons
        return "" if is_ending else self._links[worker].stack()

    def place(self, worker: int) -> str:
        """This machine: processes share its memory."""
        return "this machine, shared memory"

    @property
    def note(self) -> str:
        """Nothing: the plan says it all."""
        return ""

    @property
    def handles(self) -> tuple[WorkerHandle, ...]:
        """The worker processes on this machine."""
        return tuple(link.handle for link in self._links if isinstance(link, Link))

    def pid(self, worker: int) -> int:
        """The worker's process."""
        return self._links[worker].handle.pid

    def close(self, timeout_s: float) -> list[Failure]:
        """Ask every process to close its sub-environments and end; kill those that do not within `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        self._stall_s = min(self._stall_s, timeout_s)
        failures: list[Failure] = []
        if self._block is None:  # they wait for their arrays: the end of the pipe tells them that none will come
            for link in self._links:
                link.hang_up()
        else:
            failures = self._ask_to_close(deadline_s)
        self._release(deadline_s)
        return failures

    def _ask_to_close(self, deadline_s: float) -> list[Failure]:
        failures: list[Failure] = []
        waiting = {link.index for link in self._links if not link.is_dead}
        left_s = deadline_s - time.monotonic()
        if left_s > 0:
            for worker in waiting:
                self.submit(worker, Request(Verb.CLOSE, 0, payload=left_s))
        while waiting and (left_s := deadline_s - time.monotonic()) > 0:
            for completion in self.wait(left_s):
                if completion.death is not None or (completion.seq == 0 and completion.row == ALL_ROWS):
                    waiting.discard(completion.worker)
                if completion.seq == 0 and completion.reply is not None:
                    failures += completion.reply.failures
        return failures

    def _release(self, deadline_s: float) -> None:
        """End what still runs and give everything back; harmless when done twice."""
        if not self._is_open:
            return
        self._is_open = False
        for link in self._links:
            if not link.handle.join(max(deadline_s - time.monotonic(), 0)):
                link.handle.kill()
        for link in self._links:
            link.handle.join(KILL_WAIT_S)
            link.close()
        self._links = []
        os.close(self._done_fd)
        os.close(self._done_write)
        if self._block is not None:
            self._block.close()
        self._unsized.close()
