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

from envfleet.workers.serve import Place
from envfleet.workers.transports import launch
from envfleet.workers.transports.far import Link, start_far_worker, start_near_worker
from envfleet.workers.transports.guard import Guard
from envfleet.workers.transports.ray.tunnel import TunnelEnd
from envfleet.workers.transports.socket import Connection, introduce

_TICK_S = 60.0


class Invitation(NamedTuple):
    """Addresses at which the driver waits for a worker.

    Attributes:
        path: Unix socket for workers on the same machine, if they may share memory; else empty.
        control: Way to the driver for the guard of a worker elsewhere; its ticket also serves on this machine.
        data: Way to the driver for the data of a worker elsewhere.
        import_path: The driver's.
    """

    path: str
    control: Link
    data: Link
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
        """Connect to the driver in the shortest way that works; returns why only actor calls do, if that is so.

        No address is compared, since containers share addresses without sharing memory, and share memory under several
        addresses: a process that can connect to a Unix socket shares a kernel, and can receive descriptors.
        """
        sys.path += [folder for folder in invitation.import_path if folder not in sys.path and Path(folder).is_dir()]
        launch.server.warm_up()  # it imports while this connects
        self._links = invitation.control, invitation.data
        self._reason = "shared_memory=False"
        if invitation.path:
            try:
                self._peers = [socket.socket(socket.AF_UNIX)]
                self._peers[0].connect(invitation.path)
                self._fds, _ = introduce(self._peers[0], invitation.control.key, invitation.control.ticket)
                self._reason = ""
            except OSError as error:
                self._reason = f"{type(error).__name__}: {error}"
        try:
            if self._reason:
                self._peers = [link.connect()[0] for link in self._links]
        except OSError as error:
            self._tunnel = TunnelEnd()
            self._peers = self._tunnel.outer
            host, port = invitation.control.address
            self._reason = f"{host}:{port} cannot be reached ({type(error).__name__}: {error})"
            return self._reason
        return ""

    def start(self, settled: str, place: Place, shared: Mapping[str, NDArray[Any]] | None) -> Started:
        """Start the worker, which ends with this process or with the driver.

        Args:
            settled: Result of `settle`, which Ray waits for.
            place: Position of the worker.
            shared: The fleet's shared data, for a worker that does not share the driver's memory.

        Returns:
            The worker's process id, place and niceness.
        """
        first, *others = self._peers
        if self._reason:
            way = f"actor calls ({settled})" if settled else f"TCP (no shared memory: {self._reason})"
            where = f"node {ray.util.get_node_ip_address()}, {way}"
            lifeline, worker_end = socket.socketpair()
            others.append(worker_end)
            control_link, data_link = self._links
            fds = [worker_end.fileno(), others[0].fileno()]
            self._process, line = start_far_worker(place, fds, shared or {}, data_link)
            Guard(Connection(first), control_link, self._process, line, lifeline).start()
        else:
            others.append(first)
            self._process, where = start_near_worker(place, first.fileno(), self._fds), "this machine, shared memory"
            for fd in (*self._fds[:4], *self._fds[5:]):  # but for the file of stacks, which the process keeps
                os.close(fd)
        for peer in others:  # from now on they are the worker's
            peer.close()
        return Started(self._process.pid, where, os.getpriority(os.PRIO_PROCESS, 0))

    def wait(self, started: Started) -> int | None:
        """Return the worker's exit code, once it was started and has ended."""
        while not self._process.has_ended(_TICK_S):
            pass
        return self._process.exitcode

    def take(self) -> list[bytes]:
        """Return what the worker and its guard send by actor calls; waits up to a second."""
        return self._tunnel.take()

    def give(self, chunks: list[bytes]) -> None:
        """Pass what the driver sends by actor calls."""
        self._tunnel.give(chunks)

    def stack(self) -> str:
        """Return the stack of the worker."""
        return self._process.stack()
