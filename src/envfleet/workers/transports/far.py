"""Workers that share no memory with their owner: both ends of the connection by which their arrays and mail are alike.

Both ends keep their own board, arrays and mail, and send each other what they would read of each other's memory.
Every frame carries state, so one that says what is known already does no harm.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import signal
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

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
from envfleet.workers.transports.socket import Connection

PROGRESS = board.ROW, board.IS_REBUILDING, board.STEPS, board.BUSY_NS
"""Words by which a worker says where it is."""

_SLOT = struct.Struct("<2q")
_STEPS = frozenset({Verb.STEP, Verb.STEP_ROWS, Verb.STEP_BY_MAIL})


class _Rows:
    """A worker's rows of the arrays, and their bytes in the order in which frames carry them.

    Args:
        spec: What decides the arrays.
        buffer: Where they lie.
        rows: Those of the worker.
    """

    def __init__(self, spec: ArraysSpec, buffer: Any, rows: slice = slice(None)) -> None:
        self.arrays = arrays = FleetArrays(spec, buffer, rows)
        self.requested = _bytes_of([*arrays.actions, arrays.row_asked])
        self._results: dict[tuple[int, int, bool], list[memoryview]] = {}

    def results(self, asked: int, num_columns: int, has_finals: bool, rows: Sequence[int] | None) -> list[memoryview]:
        """Return what the worker has written for some rows, or for all of them."""
        key = asked & 15, num_columns, has_finals
        found = self._results.get(key)
        if found is None:
            arrays, out = self.arrays, self.arrays.outputs[asked >> 3 & 1]
            parts = [arrays.row_done, arrays.row_flags]
            if asked & 7 in _STEPS:
                finals = out.finals if has_finals else []
                columns = [*arrays.info_values[:num_columns], *arrays.info_given[:num_columns]]
                parts += [*out.observations, out.rewards, *out.flags, *finals, *columns]
            elif asked & 7 == Verb.RESET:
                parts += out.observations
            found = self._results[key] = _bytes_of(parts)
        if rows is None:
            return found
        sizes = [len(part) // len(self.arrays.row_asked) for part in found]
        return [part[row * size : row * size + size] for part, size in zip(found, sizes, strict=True) for row in rows]


def _bytes_of(arrays: Iterable[NDArray[Any]]) -> list[memoryview]:
    views: list[Any] = [array.reshape(-1).view(np.uint8) for array in arrays if array.size]
    return [memoryview(view) for view in views]


def _fill(parts: Iterable[memoryview], data: memoryview) -> None:
    """Fill some bytes with `data`, one part after the other."""
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
    """Put the messages at the start of `data` into a mail box; returns the rest."""
    for _ in range(count):
        slot, size = _SLOT.unpack_from(data)
        end = _SLOT.size + size
        box.put(slot, data[_SLOT.size : end])
        data = data[end:]
    return data


class FarWorker:
    """A worker that shares no memory with the owner, as the owner sees it.

    Args:
        data: The connection to it.
        line: Its words of the owner's board.
        place: Which worker it is.
        requests: The owner's mail to all workers.
        replies: Where mail from this worker is put.
    """

    def __init__(self, data: Connection, line: Line, place: Place, requests: FileMail, replies: FileMail) -> None:
        self.data, self._line, self._place, self._requests, self._replies = data, line, place, requests, replies
        self._table = 0
        self._rows: _Rows | None = None
        self._has_object_actions = False
        line[board.ASLEEP] = 1  # so that its bell is always rung

    def attach(self, spec: ArraysSpec, buffer: Any) -> None:
        """Take the worker's rows of the arrays that lie in `buffer`."""
        rows = self._place.rows
        self._rows = _Rows(spec, buffer, slice(rows.start, rows.stop))
        self._has_object_actions = spec.actions.num_objects > 0

    def ring(self) -> None:
        """Send what the worker is asked."""
        line, rows, place, read = self._line, self._rows, self._place, self._requests.read
        asked, verb = line[board.ASKED], line[board.ASKED] & 7
        mail: list[tuple[int, bytes]] = []
        parts: list[memoryview] = []
        if verb not in (Verb.STEP, Verb.STEP_ROWS):
            mail.append((0, read(place.worker)))
        if rows is not None and verb != Verb.BUILD:
            if line[board.TABLE] != self._table:
                self._table = line[board.TABLE]
                mail.append((1 + len(place.rows), read(place.num_workers + place.num_envs)))
            if verb == Verb.STEP_ROWS and self._has_object_actions:
                first = place.num_workers + place.rows.start
                under_way = np.flatnonzero(rows.arrays.row_asked != rows.arrays.row_done)
                mail += [(1 + row, read(first + row)) for row in under_way.tolist()]
            parts += rows.requested
        words = asked, self._table, len(mail), line[board.STEPS], line[board.BUSY_NS]
        self.data.send(words, [*_wrap(mail), *parts])

    def take_results(self) -> bool:
        """Take in what the worker has done; returns whether nothing more will come."""
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
        """Note where the worker is."""
        for word, value in zip(PROGRESS, words, strict=False):
            self._line[word] = value


class _Mirror:
    """A worker's own end: a board, arrays and mail that are kept like its owner's.

    Args:
        data: The connection to the owner.
        num_rows: Sub-environments of the worker.
        lines: The worker's words, and the owner's.

    Attributes:
        rows: The worker's, once it is asked to attach.
        requests: The owner's mail.
        replies: The worker's.
    """

    def __init__(self, data: Connection, num_rows: int, lines: Sequence[Line]) -> None:
        self._data, self._num_rows = data, num_rows
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
        """Sleep until the owner asks for something; ends the process with the connection."""
        if self._poller.sleep(timeout_s):
            raise SystemExit
        return False

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
                    self._told = self.rows.arrays.row_asked.copy()
            line[board.TABLE], line[board.ASKED] = table, asked
        return self._data.is_over

    def report(self) -> None:
        """Report to the owner that a request, or single rows, are finished."""
        line, read = self._line, self.replies.read
        asked, done, num_columns = line[board.ASKED], line[board.DONE], line[board.TABLE] & 255
        flags, num_rows, has_finals = 0, 0, False
        mail: list[tuple[int, bytes]] = []
        parts: list[Any] = []
        news: list[int] | None = None
        if done != asked:
            arrays = self.rows.arrays
            new = np.flatnonzero(arrays.row_done != self._told)
            self._told[new] = arrays.row_done[new]
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
    place: Place, peers: Sequence[int], shared: Mapping[str, NDArray[Any]]
) -> tuple[WorkerProcess, Line]:
    """Start the process of a worker.

    Args:
        place: Which worker it is.
        peers: Descriptors of two connections to its owner: a lifeline, and one for data.
        shared: The fleet's shared data by name.

    Returns:
        The process, and its words of the board.
    """
    stacks, files = NamelessFile(), [NamelessFile(), *([put_shared(shared)] if shared else [])]
    line, _ = board.lines_of(files[0].allocate, 1)
    place, fds = place._replace(shared=form_of(shared)), [*peers, stacks.fd, *(file.fd for file in files)]
    process = WorkerProcess("envfleet.workers.transports.far:run", place, fds, stacks)
    for file in files:
        file.close()
    return process, line


def start_near_worker(place: Place, lifeline: int, fds: Sequence[int]) -> WorkerProcess:
    """Start the process of a worker that shares its owner's memory; `fds` are as `process_worker.run` takes them."""
    return WorkerProcess("envfleet.workers.transports.far:run_near", place, [lifeline, *fds], NamelessFile(fds[4]))


def _hold_on(lifeline: int) -> None:
    """End this process with a connection, and the connection with this process, also if it was forked."""
    end_with(lifeline, is_group=True)
    os.register_at_fork(after_in_child=lambda: os.close(lifeline))


def run_near(place: Place, fds: list[int]) -> None:
    """Be a worker that shares its owner's memory; `fds` are a lifeline and those of `process_worker.run`."""
    _hold_on(fds[0])
    process_worker.run(place, fds[1:])


def run(place: Place, fds: list[int]) -> None:
    """Serve the owner until it says to close.

    Args:
        place: Which worker this is.
        fds: Lifeline and data connection to the owner, stacks, board, and shared data if there is some.
    """
    lifeline, data, stack_fd, board_fd, *shared_fds = fds
    _hold_on(lifeline)
    faulthandler.register(signal.SIGUSR1, file=stack_fd, all_threads=True)
    line, owner = lines = board.lines_of(NamelessFile(board_fd).map, 1)
    mirror = _Mirror(Connection(socket.socket(fileno=data)), len(place.rows), lines)
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
