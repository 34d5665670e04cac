"""Looking after a worker on another node while it is busy: a second actor there, made when it is first needed."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any, NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from envfleet.core.arrays import ArraysSpec, FleetArrays, PlaceWord
from envfleet.core.memory import SharedBlock
from envfleet.transports.link import read_stack
from envfleet.transports.ray.cluster import end_actor
from envfleet.transports.ray.connection import Connection


class Watched(NamedTuple):
    """A worker, as another process of its node finds it.

    Attributes:
        pid: Its process.
        worker: Its index.
        block_fd: Its descriptor of its arrays.
        stack_fd: Its descriptor of the file that takes its stacks.
        spec: Of its arrays.
    """

    pid: int
    worker: int
    block_fd: int
    stack_fd: int
    spec: ArraysSpec


class Watcher:
    """The actor that looks after the workers of its node.

    It takes their descriptors out of `/proc`, so it needs Linux, as clusters of several nodes do anyway. It keeps
    none of them, nor of their memory: workers come and go, and nobody tells it.
    """

    def progress(self, watched: Watched) -> NDArray[np.int64]:
        """The worker's progress line, now."""
        return _line(watched).copy()

    def interrupt(self, watched: Watched, place: int) -> None:
        """Have the worker give up the sub-environment at `place`, if it is still there."""
        _line(watched)[PlaceWord.INTERRUPT] = place
        _signal(watched.pid, signal.SIGUSR2)

    def stack(self, watched: Watched) -> str:
        """The worker's Python stacks, now."""
        stack_fd = _take(watched.pid, watched.stack_fd)
        try:
            return read_stack(stack_fd, lambda: _signal(watched.pid, signal.SIGUSR1))
        finally:
            os.close(stack_fd)


def _line(watched: Watched) -> NDArray[np.int64]:
    """The worker's progress line, in its own memory, which is mapped as long as somebody holds this."""
    block_fd = _take(watched.pid, watched.block_fd)
    with SharedBlock.attach(block_fd, watched.spec.block_layout().size_bytes) as block:
        line: NDArray[np.int64] = FleetArrays.bind(watched.spec, block.buffer).progress[watched.worker]
    return line


def _take(pid: int, fd: int) -> int:
    return os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Watchers:
    """The driver's side: a watcher per node, made when it is first asked for.

    Args:
        connection: The connection to Ray.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._by_node: dict[str, Any] = {}

    def on(self, node_id: str) -> Any:
        """The watcher of a node, which may still be starting."""
        if node_id not in self._by_node:
            strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
            self._by_node[node_id] = ray.remote(Watcher).options(num_cpus=0, scheduling_strategy=strategy).remote()
        return self._by_node[node_id]

    def forget(self, node_id: str) -> None:
        """End the watcher of a node; another is made if it is asked for again.

        Without the head of the cluster, which would be waited for, it ends when Ray finds that nobody holds it.
        """
        watcher = self._by_node.pop(node_id, None)
        if watcher is not None and self._connection.can_ask():
            end_actor(watcher)

    def close(self) -> None:
        """End them."""
        for node_id in list(self._by_node):
            self.forget(node_id)
