"""Workers without shared memory: both ends of the connection that copies their arrays and mail.

Each end has a board, arrays and mail, and sends the other one the parts that it would read from shared memory. If the
connection is lost, the worker connects again, and both ends repeat what the other one has not read.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import signal
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet.workers import board
from envfleet.workers.arrays import ArraysSpec, FleetArrays
from envfleet.workers.board import Line, Poller, Verb, Waiter
from envfleet.workers.memory import FileMail, NamelessFile, dumps_reply
from envfleet.workers.serve import Place, Server, WorkerContext
from envfleet.workers.shared import form_of, map_shared, put_shared
from envfleet.workers.transports import process_worker
from envfleet.workers.transports.forkserver import end_with
from envfleet.workers.transports.launch import WorkerProcess
from envfleet.workers.transports.socket import Connection, enable_keepalive, introduce

PROGRESS = board.ROW, board.IS_REBUILDING, board.STEPS, board.BUSY_NS
"""Words with which a worker reports its progress."""

_CONNECT_S, _RETRY_S = 10.0, 0.1
_SLOT = struct.Struct("<2q")
_STEPS = frozenset({Verb.STEP, Verb.STEP_ROWS, Verb.STEP_BY_MAIL})


class Link(NamedTuple):
    """Way to the owner, by which a process connects, and connects again.

    Attributes:
        address: Host and port of the owner.
        key: Key of the fleet.
        ticket: Ticket of the connection.
        timeout_s: Time without an answer of the other machine after which the kernel ends a connection.
    """

    address: tuple[str, int]
    key: bytes
    ticket: int
    timeout_s: float

    def connect(self, num_read: int = 0) -> tuple[socket.socket, int]:
        """Connect once.

        Args:
            num_read: Number of the last frame that was read from an earlier connection.

        Returns:
            The socket, and the number of the last frame that the owner has read.

        Raises:
            OSError: The owner cannot be reached, or does not accept this process.
        """
        peer = socket.create_connection(self.address, _CONNECT_S)
        try:
            peer.settimeout(None)  # a busy owner accepts when it next waits for its workers
            enable_keepalive(peer, self.timeout_s)
            return peer, introduce(peer, self.key, self.ticket, num_read)[1]
        except BaseException:
            peer.close()
            raise


class _Rows:
    """Rows of a worker in the arrays, and their bytes in the order of a frame.

    Args:
        spec: Description of the arrays.
        buffer: Memory of the arrays.
        rows: Rows of the worker.
    """

    def __init__(self, spec: ArraysSpec, buffer: Any, rows: slice = slice(None)) -> None:
        self.arrays = arrays = FleetArrays(spec, buffer, rows)
        self.requested = _bytes_of([*arrays.actions, arrays.row_asked])
        self._results: dict[tuple[int, int, bool], list[memoryview]] = {}

    def results(self, asked: int, num_columns: int, has_finals: bool, rows: Sequence[int] | None) -> list[memoryview]:
        """Return the results of the worker for some rows, or for all of them."""
        key = asked & 15, num_columns, has_finals
        parts = self._results.get(key)
        if parts is None:
            arrays, out = self.arrays, self.arrays.outputs[asked >> 3 & 1]
            arrays_read = [arrays.row_done, arrays.row_flags]
            if asked & 7 in _STEPS:
                finals = out.finals if has_finals else []
                columns = [*arrays.info_values[:num_columns], *arrays.info_given[:num_columns]]
                arrays_read += [*out.observations, out.rewards, *out.flags, *finals, *columns]
            elif asked & 7 == Verb.RESET:
                arrays_read += out.observations
            parts = self._results[key] = _bytes_of(arrays_read)
        if rows is None:
            return parts
        sizes = [len(part) // len(self.arrays.row_asked) for part in parts]
        return [part[row * size : row * size + size] for part, size in zip(parts, sizes, strict=True) for row in rows]


def _bytes_of(arrays: Iterable[NDArray[Any]]) -> list[memoryview]:
    views: list[Any] = [array.reshape(-1).view(np.uint8) for array in arrays if array.size]
    return [memoryview(view) for view in views]


def _fill(parts: Iterable[memoryview], data: memoryview) -> None:
    """Copy `data` to `parts`, one after another."""
    start = 0
    for part in parts:
        end = start + len(part)
        part[:] = data[start:end]
        start = end


def _wrap(mail: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    for slot, message in mail:
        yield _SLOT.pack(slot, len(message))
        yield message


def _deliver(box: FileMail, count: int, data: memoryview) -> memoryview:
    """Write the messages at the start of `data` to a mail; return the rest."""
    for _ in range(count):
        slot, size = _SLOT.unpack_from(data)
        end = _SLOT.size + size
        box.put(slot, data[_SLOT.size : end])
        data = data[end:]
    return data


class FarWorker:
    """Owner's end of a worker without shared memory.

    Args:
        data: Connection to the worker.
        line: Its words of the owner's board.
        place: Position of the worker.
        requests: The owner's mail to all workers.
        replies: Mail from this worker.
    """

    def __init__(self, data: Connection, line: Line, place: Place, requests: FileMail, replies: FileMail) -> None:
        self.data, self._line, self._place, self._requests, self._replies = data, line, place, requests, replies
        self._table = 0
        self._rows: _Rows | None = None
        self._has_object_actions = False
        line[board.ASLEEP] = 1  # so that its bell is always rung

    def attach(self, spec: ArraysSpec, buffer: Any) -> None:
        """Set the memory of the arrays."""
        rows = self._place.rows
        self._rows = _Rows(spec, buffer, slice(rows.start, rows.stop))
        self._has_object_actions = spec.actions.num_objects > 0

    def ring(self) -> None:
        """Send the pending requests."""
        if self.data.has_data:  # results whose receipt was interrupted
            self.take_results()
        line, rows, place, read = self._line, self._rows, self._place, self._requests.read
        asked, verb, table = line[board.ASKED], line[board.ASKED] & 7, self._table
        mail: list[tuple[int, bytes]] = []
        parts: list[memoryview] = []
        if verb not in (Verb.STEP, Verb.STEP_ROWS):
            mail.append((0, read(place.worker)))
        if rows is not None and verb != Verb.BUILD:
            if line[board.TABLE] != table:
                table = line[board.TABLE]
                mail.append((1 + len(place.rows), read(place.num_workers + place.num_envs)))
            if verb == Verb.STEP_ROWS and self._has_object_actions:
                first = place.num_workers + place.rows.start
                under_way = np.flatnonzero(rows.arrays.row_asked != rows.arrays.row_done)
                mail += [(1 + row, read(first + row)) for row in under_way.tolist()]
            parts += rows.requested
        words = asked, table, len(mail), line[board.STEPS], line[board.BUSY_NS]
        self.data.send(words, [*_wrap(mail), *parts])
        self._table = table  # only now: an interrupted request is sent again

    def take_results(self) -> bool:
        """Receive finished requests; return True if the connection has ended."""
        line = self._line
        for words, data in self.data.frames():
            asked, done, flags, num_mails, num_rows, num_columns, has_finals, *progress = words
            rest = _deliver(self._replies, num_mails, data)
            if num_rows and self._rows is not None:
                rows = None if num_rows < 0 else rest[: 8 * num_rows].cast("q").tolist()
                _fill(self._rows.results(asked, num_columns, bool(has_finals), rows), rest[8 * max(num_rows, 0) :])
            self.note_progress(progress)
            if done != line[board.DONE]:
                line[board.FLAGS] = flags
                line[board.DONE] = done
        return self.data.is_over

    def note_progress(self, words: Sequence[int]) -> None:
        """Record the progress of the worker."""
        for word, value in zip(PROGRESS, words, strict=False):
            self._line[word] = value


class _Mirror:
    """Worker's end: a board, arrays and mail that are kept equal to the owner's.

    Args:
        data: Connection to the owner.
        num_rows: Sub-environments of the worker.
        lines: The worker's words, and the owner's.
        link: Way to connect again; `None` ends the worker with its connection.

    Attributes:
        rows: Rows of the worker, once attached.
        requests: Mail from the owner.
        replies: Mail to the owner.
    """

    def __init__(self, data: Connection, num_rows: int, lines: Sequence[Line], link: Link | None) -> None:
        self._data, self._num_rows, self._link = data, num_rows, link
        self._line, owner = lines
        owner[board.ASLEEP] = 1  # so that its bell is always rung
        self._files = NamelessFile(), NamelessFile()
        requests, replies = self._files
        self.requests, self.replies = (
            FileMail(requests.fd, num_rows + 2),
            FileMail(replies.fd, num_rows + 1, dumps_reply),
        )
        self.rows: Any = None  # once they are attached
        self._poller = Poller()
        self._poller.watch(data.fd, self._take_in)

    def sleep(self, timeout_s: float) -> bool:
        """Sleep until the owner sends a request; if the connection has ended, connect again."""
        if self._poller.sleep(timeout_s):
            self._connect_again()
        return False

    def _connect_again(self) -> None:
        """Connect until it succeeds; the guard kills this process when that has become useless."""
        if self._link is None:
            raise SystemExit
        self._poller.forget(self._data.fd)
        while True:
            try:
                peer, num_confirmed = self._link.connect(self._data.num_read)
                break
            except OSError:
                time.sleep(_RETRY_S)
        self._data.resume(peer, num_confirmed)
        self._poller.watch(self._data.fd, self._take_in)

    def _take_in(self) -> bool:
        line = self._line
        for (asked, table, num_mails, steps, busy_ns, *_), data in self._data.frames():
            rest, verb = _deliver(self.requests, num_mails, data), asked & 7
            if verb == Verb.BUILD:
                line[board.STEPS], line[board.BUSY_NS] = steps, busy_ns  # of all workers that had these rows
            elif verb == Verb.ATTACH:
                spec = dataclasses.replace(self.requests.get(0), num_envs=self._num_rows)
                self.rows = _Rows(spec, spec.block.allocate())
            if self.rows is not None:
                _fill(self.rows.requested, rest)
                if verb == Verb.ATTACH:
                    self._row_done_before = self.rows.arrays.row_asked.copy()
            line[board.TABLE], line[board.ASKED] = table, asked
        return self._data.is_over

    def report(self) -> None:
        """Send the results of a request, or of single rows, to the owner."""
        line, read = self._line, self.replies.read
        asked, done, num_columns = line[board.ASKED], line[board.DONE], line[board.TABLE] & 255
        flags, num_rows, has_finals = 0, 0, False
        mail: list[tuple[int, bytes]] = []
        parts: list[Any] = []
        news: list[int] | None = None
        if done != asked:
            arrays = self.rows.arrays
            new = np.flatnonzero(arrays.row_done != self._row_done_before)
            self._row_done_before[new] = arrays.row_done[new]
            mail = [(1 + row, read(1 + row)) for row in new[arrays.row_flags[new] & board.MAIL != 0].tolist()]
            asked, news, num_rows, parts = asked & ~7 | Verb.STEP_ROWS, new.tolist(), len(new), [new]
        else:
            flags = line[board.FLAGS]
            mail = [(0, read(0))] if flags & board.MAIL else []
            num_rows = -1 if self.rows is not None and asked & 7 != Verb.STEP_ROWS else 0
            if asked & 7 == Verb.RESET and not flags & board.ERROR:
                news = list(self.requests.get(0).rows)
                num_rows, parts = len(news), [np.array(news, np.int64)]
        if num_rows:
            out = self.rows.arrays.outputs[asked >> 3 & 1]
            has_finals = bool(out.finals) and asked & 7 in _STEPS and bool(out.flags[:, news].any())
            parts += self.rows.results(asked, num_columns, has_finals, news)
        words = asked, done, flags, len(mail), num_rows, num_columns, has_finals, *(line[word] for word in PROGRESS)
        self._data.send(words, [*_wrap(mail), *parts])


def start_far_worker(
    place: Place, peers: Sequence[int], shared: Mapping[str, NDArray[Any]], link: Link | None = None
) -> tuple[WorkerProcess, Line]:
    """Start the process of a worker.

    Args:
        place: Position of the worker.
        peers: Descriptors: a lifeline, which ends the worker when it closes, and the connection for data.
        shared: The fleet's shared data by name.
        link: Way to connect to the owner again; without one, the worker ends with its connection.

    Returns:
        The process, and its words of the board.
    """
    stacks, files = NamelessFile(), [NamelessFile(), *([put_shared(shared)] if shared else [])]
    line, _ = board.lines_of(files[0].allocate, 1)
    place, fds = place._replace(shared=form_of(shared)), [*peers, stacks.fd, *(file.fd for file in files)]
    process = WorkerProcess("envfleet.workers.transports.far:run", (place, link), fds, stacks)
    for file in files:
        file.close()
    return process, line


def start_near_worker(place: Place, lifeline: int, fds: Sequence[int]) -> WorkerProcess:
    """Start the process of a worker with shared memory; `fds` are those of `process_worker.run`."""
    return WorkerProcess("envfleet.workers.transports.far:run_near", place, [lifeline, *fds], NamelessFile(fds[4]))


def _end_with_lifeline(lifeline: int) -> None:
    """Kill this process when a connection ends; keep the connection out of its forks."""
    end_with(lifeline, is_group=True)
    os.register_at_fork(after_in_child=lambda: os.close(lifeline))


def run_near(place: Place, fds: list[int]) -> None:
    """Run a worker with shared memory; `fds` are a lifeline and those of `process_worker.run`."""
    _end_with_lifeline(fds[0])
    process_worker.run(place, fds[1:])


def run(arguments: tuple[Place, Link | None], fds: list[int]) -> None:
    """Serve the owner until it asks to close.

    Args:
        arguments: Place of this worker, and the way to connect to its owner again.
        fds: Lifeline, data connection to the owner, stacks, board, and shared data if there is some.
    """
    place, link = arguments
    lifeline, data, stack_fd, board_fd, *shared_fds = fds
    _end_with_lifeline(lifeline)
    faulthandler.register(signal.SIGUSR1, file=stack_fd, all_threads=True)
    line, owner = lines = board.lines_of(NamelessFile(board_fd).map, 1)
    mirror = _Mirror(Connection(socket.socket(fileno=data)), len(place.rows), lines, link)
    context = WorkerContext(
        place=Place(0, 1, range(len(place.rows)), len(place.rows), {}),
        lines=[line],
        owner=owner,
        requests=mirror.requests,
        replies=mirror.replies,
        waiter=Waiter(line, owner, mirror.sleep),
        ring=mirror.report,
        map_arrays=lambda spec: mirror.rows.arrays,
        shared=map_shared(shared_fds[0], place.shared) if shared_fds else {},
    )
    Server(context).run()
