"""The owner's side of one worker: for a process, its pipes, its handle, and the file it writes its stack to."""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import select
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from envfleet.core.arrays import ArraysSpec
from envfleet.core.layout import BlockLayout
from envfleet.core.messages import Reply, Request
from envfleet.core.transport import GroupPlan
from envfleet.transports.handle import WorkerHandle
from envfleet.transports.request_pipe import RequestPipe
from envfleet.transports.wire import LENGTH, encode_builder, encode_request

STALL_LOOKS = 5
"""Looks, in vain, into which a wait is cut: one alone may be in vain because this process was stopped meanwhile."""

ROOM_MS = 50
"""How long whoever sends waits for a worker to read on, before the rest is sent while something else is waited for."""

Start = Callable[[list[int], list[int]], WorkerHandle]
"""Starts a worker: the descriptors it gets, and the owner's ends of its pipes, which it must not hold."""


class Handle(Protocol):
    """A worker's process: is it there, how did it end, and how to end it."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    @property
    def sentinel_fd(self) -> int:
        """Readable once it is gone; -1 where that is told otherwise."""
        ...

    def join(self, timeout_s: float | None) -> bool:
        """Wait until it is gone; return whether it is."""
        ...

    def exitcode(self) -> int | None:
        """How it ended, if that can be known."""
        ...

    def send_signal(self, sig: int) -> None:
        """Send it a signal."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


class WorkerLink(Protocol):
    """What ties the owner to one worker. `is_dead` once its end was told."""

    index: int
    is_dead: bool

    @property
    def handle(self) -> Handle:
        """Its process."""
        ...

    def send_plan(self, plan: GroupPlan, shared_layout: BlockLayout | None) -> None:
        """Have it build its group; answered under sequence number 0."""
        ...

    def send_spec(self, spec: ArraysSpec) -> None:
        """Give its group, which is built, the arrays."""
        ...

    def submit(self, request: Request) -> None:
        """Hand it a request, unless it is gone."""
        ...

    def pipe(self) -> RequestPipe | None:
        """The pipe in which some of what it was sent waits for room, if there is any."""
        ...

    def read_reply(self, record: tuple[int, ...], stall_s: float) -> Reply | None:
        """Read the reply that `record` announced, or `None` if the worker died in the middle of it.

        Called with the same record again, after Ctrl-C, it goes on where it was, or returns the same reply again.

        Raises:
            TimeoutError: Nothing more of it came for `stall_s`; there is no reading on.
        """
        ...

    def forget_reply(self) -> None:
        """Let go of the reply last read: its record is off the queue."""
        ...

    def can_look(self) -> bool:
        """Whether its progress line tells where it is now."""
        ...

    def interrupt(self) -> None:
        """Ask it to give up the sub-environment named in its progress line."""
        ...

    def stack(self) -> str:
        """Its Python stacks."""
        ...

    def hang_up(self) -> None:
        """Tell it that nothing more will come; idempotent."""
        ...

    def close(self) -> None:
        """Release what is held for it, ending it by force if it still runs."""
        ...


class Link:
    """The owner's ends of everything that ties it to a worker process on this machine.

    Args:
        index: The worker's index.
        fds: What the worker gets besides its own ends of the pipes: completion pipe, shared block, shared data if any.
        start: Starts its process.
    """

    def __init__(self, index: int, fds: Sequence[int], start: Start) -> None:
        self.index = index
        self.is_dead = self._is_closed = self._is_stalled = False
        self._announced: tuple[int, ...] | None = None  # record of the message that is being read
        self._received: collections.deque[bytes] = collections.deque()  # of that message
        with contextlib.ExitStack() as undo:
            request_read, request_fd = _pipe(undo)
            self.reply_fd, reply_write = _pipe(undo)
            self.stack_fd = os.memfd_create("envfleet-stack") if hasattr(os, "memfd_create") else _unlinked_file()
            undo.callback(os.close, self.stack_fd)
            self.handle = start([request_read, reply_write, self.stack_fd, *fds], [request_fd, self.reply_fd])
            os.close(request_read)
            os.close(reply_write)
            undo.pop_all()
        os.set_blocking(request_fd, False)
        os.set_blocking(self.reply_fd, False)
        self._requests = RequestPipe(request_fd)

    @property
    def request_fd(self) -> int:
        """The owner's end of the request pipe; -1 once it is closed."""
        return self._requests.fd

    def pipe(self) -> RequestPipe | None:
        """The request pipe, if something waits for room in it."""
        return self._requests if self._requests.is_blocked else None

    def send_plan(self, plan: GroupPlan, shared_layout: BlockLayout | None) -> None:
        """Have the worker build its group; it answers under sequence number 0."""
        self._write_message((plan, shared_layout))

    def send_spec(self, spec: ArraysSpec) -> None:
        """Have the worker map the arrays, before anything else."""
        self._write_message(spec)

    def submit(self, request: Request) -> None:
        """Write a request, unless the worker is gone; of a large one as much as it reads right now."""
        requests = self._requests
        requests.write(encode_request(request))
        while requests.is_blocked and self._has_room():
            requests.push()

    def can_look(self) -> bool:
        """Always: it writes into shared memory."""
        return True

    def interrupt(self) -> None:
        """Raise inside the stuck sub-environment, by a signal."""
        self.handle.send_signal(signal.SIGUSR2)

    def _write_message(self, message: Any) -> None:
        """Write a pickled value with its length in front."""
        body = encode_builder(message)
        self._requests.write(LENGTH.pack(len(body)) + body)

    def _has_room(self) -> bool:
        """Wait a moment for the worker to read on; False if it first wants to get rid of a reply, or is gone."""
        poller = select.poll()
        poller.register(self.request_fd, select.POLLOUT)
        poller.register(self.reply_fd, select.POLLIN)
        poller.register(self.handle.sentinel_fd, select.POLLIN)
        return any(fd == self.request_fd for fd, _ in poller.poll(ROOM_MS))

    def read_reply(self, record: tuple[int, ...], stall_s: float) -> Reply | None:
        """Read one message; see `WorkerLink`."""
        if record is not self._announced:  # Ctrl-C came after the last one was off the queue, before it was forgotten
            self._received.clear()
            self._announced = record
        if self._is_stalled or not self._fill(LENGTH.size, stall_s):
            return None
        size = LENGTH.size + LENGTH.unpack_from(b"".join(self._received))[0]
        if not self._fill(size, stall_s):
            return None
        reply: Reply = pickle.loads(memoryview(b"".join(self._received))[LENGTH.size :])
        return reply

    def forget_reply(self) -> None:
        """Give back the memory of the reply last read."""
        self._received.clear()

    def _fill(self, size: int, stall_s: float) -> bool:
        """Read until `size` bytes of a message are there; False if the worker is gone before."""
        poller = select.poll()
        poller.register(self.reply_fd, select.POLLIN)
        poller.register(self.handle.sentinel_fd, select.POLLIN)
        looks, missing = 0, size - sum(map(len, self._received))
        while missing > 0:
            looks = 0 if poller.poll(stall_s * 1000 / STALL_LOOKS) else looks + 1
            if looks == STALL_LOOKS:
                self._is_stalled = True
                raise TimeoutError(f"nothing more of a reply for {stall_s:g} s")
            try:
                # One call reads and stores: Python raises Ctrl-C between any two, and what only was read would be lost.
                self._received.extend(map(os.read, (self.reply_fd,), (missing,)))
            except BlockingIOError:
                if not self.handle.is_alive():
                    return False
                continue
            if not self._received[-1]:
                return False
            missing -= len(self._received[-1])
        return True

    def stack(self) -> str:
        """The worker's Python stacks, as its signal handler writes them (also from within C code)."""
        return read_stack(self.stack_fd, lambda: self.handle.send_signal(signal.SIGUSR1))

    def hang_up(self) -> None:
        """End the request pipe: a worker that reads the end closes its sub-environments and ends; idempotent."""
        self._requests.close()

    def close(self) -> None:
        """Release the descriptors; idempotent, for one whose successor could not be started is closed again."""
        if self._is_closed:
            return
        self._is_closed = True
        self.hang_up()
        os.close(self.reply_fd)
        os.close(self.stack_fd)
        self.handle.close()


def read_stack(stack_fd: int, ask: Callable[[], None]) -> str:
    """Read what a worker adds to its stack file when asked to, waiting for it for a second at most."""
    start = os.fstat(stack_fd).st_size
    ask()
    deadline_s, size = time.monotonic() + 1.0, start
    while time.monotonic() < deadline_s:
        time.sleep(0.02)
        grown = os.fstat(stack_fd).st_size
        if grown == size > start:
            break
        size = grown
    return os.pread(stack_fd, size - start, start).decode(errors="replace")


def _pipe(undo: contextlib.ExitStack) -> tuple[int, int]:
    read_fd, write_fd = os.pipe()
    undo.callback(os.close, read_fd)
    undo.callback(os.close, write_fd)
    return read_fd, write_fd


def _unlinked_file() -> int:
    handle, path = tempfile.mkstemp(prefix="envfleet-stack-")
    Path(path).unlink()
    return handle
