"""What runs inside a Ray actor: one worker."""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray
from numpy.typing import NDArray

from envfleet.core.arrays import ArraysSpec, FleetArrays
from envfleet.core.env_group import EnvGroup
from envfleet.core.layout import SpaceLayout
from envfleet.core.memory import SharedBlock
from envfleet.core.messages import Reply, Request
from envfleet.core.serve import Server
from envfleet.core.shared import SharedArrays
from envfleet.core.transport import GroupPlan
from envfleet.transports import worker
from envfleet.transports.ray.one_by_one import at_once
from envfleet.transports.ray.parcels import (
    Packed,
    Past,
    decode_call,
    encode_parcel,
    put_progress,
    rows_written,
    take_results,
)
from envfleet.transports.ray.rendezvous import Address, meet
from envfleet.transports.ray.watcher import Watched
from envfleet.transports.wire import encode_reply

EXIT_S = 5.0
"""How long Ray may take to end a worker that is done."""


class Seat(NamedTuple):
    """Where a worker was placed.

    Attributes:
        pid: Its process, on its node.
        node_id: Ray's name for the node.
        host: The node's address.
        has_memory: Whether it holds the descriptors of the fleet's memory.
        reason: Why not, if it does not.
    """

    pid: int
    node_id: str
    host: str
    has_memory: bool
    reason: str


class RayWorker:
    """One worker of a fleet. Runs in the main thread of its process, as environments expect.

    It serves either through shared memory, in one call that lasts as long as the worker (`run`), or by a call for each
    request (`build`, `bind`, `handle`).

    Args:
        index: The worker's index.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._channel: socket.socket | None = None
        self._fds: list[int] = []
        self._records: list[tuple[int, bytes | None]] = []
        self._num_columns = 0
        self._group: EnvGroup | None = None
        self._plan: GroupPlan | None = None
        self._server: Server | None = None

    def settle(self, address: Address | None, path: Sequence[str]) -> Seat:
        """Say where this is, and try to get at the driver's memory, if an address is given.

        Args:
            address: Where the driver waits.
            path: The driver's import path, of which Ray hands on two folders; what of it is here, too, is added.
        """
        sys.path += [folder for folder in path if folder not in sys.path and Path(folder).is_dir()]
        reason = "it was told not to attach"
        if address is not None:
            found = meet(address, self._index)
            if isinstance(found, str):
                reason = found
            else:
                self._channel, self._fds = found
                reason = ""
        context = ray.get_runtime_context()
        host = ray.util.get_node_ip_address()
        return Seat(os.getpid(), context.get_node_id(), host, not reason, reason)

    # ------------------------------------------------------------------ through shared memory

    def run(self) -> None:
        """Serve through shared memory until told to close, or until the driver is gone; then end the process."""
        worker.run(pickle.dumps(self._index), self._fds)
        _exit()

    # ------------------------------------------------------------------ by calls

    def build(self, boot: bytes, shared: dict[str, NDArray[Any]]) -> bytes:
        """Build the group; returns the encoded reply.

        Args:
            boot: The pickled plan, and the layout of shared data, which is not used.
            shared: The fleet's shared data by name.
        """
        self._group, self._plan, reply = worker.build_group(boot, self._index, lambda _: SharedArrays.local(shared))
        return encode_reply(reply, "make", self._index, self._first_index)

    def bind(self, spec: ArraysSpec, past: Past | None) -> Watched | None:
        """Give the group, if it was built, arrays of its own.

        Args:
            spec: Of the fleet's arrays.
            past: Of the worker that was here before, if there was one.

        Returns:
            What the node's watcher needs.
        """
        if self._group is None or self._plan is None:
            return None
        self._spec = dataclasses.replace(spec, num_envs=self._group.num_envs)
        self._block = SharedBlock.create(self._spec.block_layout().size_bytes)
        self._arrays = FleetArrays.bind(self._spec, self._block.buffer)
        line = self._arrays.progress[self._index]
        if past is not None:
            put_progress(line, past.progress)
            for out, observations in zip(self._arrays.outputs, past.observations, strict=True):
                for leaf, last in zip(out.observations, observations, strict=True):
                    leaf[...] = last
        self._group.attach(self._arrays, (SpaceLayout(spec.observation_space), SpaceLayout(spec.action_space)))
        worker.allow_interrupts(line)
        self._stack_fd = os.memfd_create("envfleet-stack")
        faulthandler.register(signal.SIGUSR1, file=self._stack_fd, all_threads=True)
        self._server = Server(self._group, self._index, self._plan.options.first_index, self._complete)
        return Watched(os.getpid(), self._index, self._block.fd, self._stack_fd, self._spec)

    def handle(self, call: Packed) -> Packed:
        """Carry out one request.

        Args:
            call: The request, and the actions of a step; see `parcels`.

        Returns:
            A parcel.
        """
        if self._server is None:
            raise RuntimeError("a request came before the arrays")
        request = decode_call(call, self._arrays)
        self._verb = request.verb.name.lower()
        self._records = []
        self._server.handle(at_once(request))
        return encode_parcel(
            self._records, self._arrays.progress[self._index], self._num_columns, self._results(request)
        )

    def _results(self, request: Request) -> tuple[list[bytes], bool]:
        rows = rows_written(request)
        out, other = (self._arrays.outputs[g] for g in (request.generation, 1 - request.generation))
        # The owner may copy rows from one generation to the other, of which this side does not hear. Here both hold
        # the last observations of all rows, so that it does not matter.
        if rows is not None:
            for leaf, second in zip(out.observations, other.observations, strict=True):
                second[rows] = leaf[rows]
        return take_results(out, rows, self._num_columns)

    def _complete(self, seq: int, row: int, reply: Reply | None) -> None:
        if reply is None:
            self._records.append((row, None))
            return
        self._num_columns += len(reply.columns)
        self._records.append((row, encode_reply(reply, self._verb, self._index, self._first_index)))

    def leave(self) -> None:
        """End the process; a group that was built and never served is closed first."""
        if self._group is not None and self._server is None:
            self._group.close()
        _exit()

    @property
    def _first_index(self) -> int:
        return 0 if self._plan is None else self._plan.options.first_index


def _exit() -> None:
    """End this process. Ray's way of ending waits for the head; if that is gone, so is the process, a moment later."""
    last_resort = threading.Timer(EXIT_S, os._exit, [0])
    last_resort.daemon = True
    last_resort.start()
    ray.actor.exit_actor()
