"""Main function of a worker process: map the memory that it shares with its owner, and serve."""

from __future__ import annotations

import faulthandler
import functools
import signal

from envfleet.workers.arrays import ArraysSpec, FleetArrays
from envfleet.workers.board import WORKER_SPIN_NS, Poller, Waiter, lines_of, ring_pipe
from envfleet.workers.memory import FileMail, NamelessFile, dumps_reply
from envfleet.workers.serve import Place, Server, WorkerContext
from envfleet.workers.shared import map_shared
from envfleet.workers.transports import forkserver


class _OwnerEnded(BaseException):
    pass


def _notice_end() -> bool:
    raise _OwnerEnded


def run(place: Place, fds: list[int]) -> None:
    """Serve the owner until it asks to close, or ends.

    Args:
        place: Position of the worker in the fleet.
        fds: Board, arrays, requests, replies, stacks, own bell, owner's bell, and shared data if there is some.
    """
    board_fd, arrays_fd, requests_fd, replies_fd, stack_fd, bell_fd, owner_fd, *shared_fds = fds
    faulthandler.register(signal.SIGUSR1, file=stack_fd, all_threads=True)
    board = NamelessFile(board_fd)
    *lines, owner = lines_of(board.map, place.num_workers)
    line = lines[place.worker]

    def map_arrays(spec: ArraysSpec) -> FleetArrays:
        block = NamelessFile(arrays_fd).map(spec.block.size_bytes)
        return FleetArrays(spec, block, slice(place.rows.start, place.rows.stop))

    poller = Poller()
    poller.watch(bell_fd)
    poller.watch(forkserver.owner_fd, _notice_end)
    context = WorkerContext(
        place=place,
        lines=lines,
        owner=owner,
        requests=FileMail(requests_fd, 0),
        replies=FileMail(replies_fd, 1 + len(place.rows), dumps_reply),
        waiter=Waiter(line, owner, poller.sleep, spin_ns=WORKER_SPIN_NS),
        ring=functools.partial(ring_pipe, owner_fd),
        map_arrays=map_arrays,
        shared=map_shared(shared_fds[0], place.shared) if shared_fds else {},
        is_alone=True,
    )
    server = Server(context)
    try:
        server.run()
    except _OwnerEnded:
        if server.group is not None:
            server.group.close()
