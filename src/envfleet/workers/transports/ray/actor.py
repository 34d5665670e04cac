"""Process that Ray places: it starts one worker and looks after it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ray
from numpy.typing import NDArray

from envfleet.workers.board import Line
from envfleet.workers.serve import Place
from envfleet.workers.transports import launch
from envfleet.workers.transports.far import PROGRESS, start_far_worker, start_near_worker
from envfleet.workers.transports.socket import enable_keepalive, introduce

_CONNECT_S = 10.0
_TICK_S = 60.0


class Invitation(NamedTuple):
    """Addresses at which the driver waits for a worker.

    Attributes:
        path: Unix socket for workers on the same machine, if they may share memory; else empty.
        address: Host and port for everybody else.
        key: Of the fleet.
        ticket: Which worker this is.
        import_path: The driver's.
    """

    path: str
    address: tuple[str, int]
    key: bytes
    ticket: int
    import_path: list[str]


class Started(NamedTuple):
    """A worker that was started.

    Attributes:
        pid: Id of its process.
        place: Its node, and the connection to it.
        niceness: Niceness of its process; 0 is that of ordinary programs.
    """

    pid: int
    place: str
    niceness: int


class RayWorker:
    """Process that starts a worker as its child; the driver calls `settle`, then `start`, then the rest."""

    def settle(self, invitation: Invitation) -> str:
        """Connect to the driver in the shortest way that works; returns why not, if none does.

        No address is compared, since containers share addresses without sharing memory, and share memory under several
        addresses: a process that can connect to a Unix socket shares a kernel, and can receive descriptors.
        """
        sys.path += [folder for folder in invitation.import_path if folder not in sys.path and Path(folder).is_dir()]
        launch.server.warm_up()  # it imports while this connects
        self._reason = "shared_memory=False"
        if invitation.path:
            try:
                self._peers = [socket.socket(socket.AF_UNIX)]
                self._peers[0].connect(invitation.path)
                self._fds, self._reason = introduce(self._peers[0], invitation.key, invitation.ticket), ""
            except OSError as error:
                self._reason = f"{type(error).__name__}: {error}"
        try:
            if self._reason:
                self._peers = [socket.create_connection(invitation.address, _CONNECT_S) for _ in range(2)]
                for peer in self._peers:
                    peer.settimeout(None)
                    introduce(peer, invitation.key, invitation.ticket)
                enable_keepalive(self._peers[0])
        except OSError as error:
            return f"the driver cannot be reached at {invitation.address} ({type(error).__name__}: {error})"
        return ""

    def start(self, settled: str, place: Place, shared: Mapping[str, NDArray[Any]] | None) -> Started:
        """Start the worker, which ends with this process or with the driver.

        Args:
            settled: What `settle` has returned, which Ray waits for.
            place: Which worker it is.
            shared: The fleet's shared data, for a worker that does not share the driver's memory.

        Returns:
            The worker's process id, place and niceness.
        """
        peers = [peer.fileno() for peer in self._peers]
        self._line: Line | None = None
        try:
            if self._reason:
                self._process, self._line = start_far_worker(place, peers, shared or {})
                where = f"node {ray.util.get_node_ip_address()}, TCP ({self._reason})"
            else:
                self._process, where = start_near_worker(place, peers[0], self._fds), "this machine, shared memory"
            return Started(self._process.pid, where, os.getpriority(os.PRIO_PROCESS, 0))
        finally:
            for peer in self._peers:  # from now on they are the worker's
                peer.close()

    def wait(self, started: Started) -> int | None:
        """Return the worker's exit code, once it was started and has ended."""
        while not self._process.has_ended(_TICK_S):
            pass
        return self._process.exitcode

    def look(self, has_stack: bool) -> tuple[list[int], str]:
        """Return where a worker is that does not share the driver's memory, and the stack of any."""
        text = self._process.stack() if has_stack else ""
        return [] if self._line is None else [self._line[word] for word in PROGRESS], text
