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

from envfleet.core.arrays import ArraysSpec, FleetArrays, Progress
from envfleet.core.memory import SharedBlock
from envfleet.transports.link import read_stack
from envfleet.transports.ray.cluster import end_actor


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

    It takes their descriptors out of `/proc`, so it needs Linux, as clusters of several nodes do anyway.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[NDArray[np.int64], int]] = {}

    def progress(self, watched: Watched) -> NDArray[np.int64]:
        """The worker's progress line, now."""
        return self._attach(watched)[0]

    def interrupt(self, watched: Watched, place: int) -> None:
        """Have the worker give up the sub-environment at `place`, if it is still there."""
        self._attach(watched)[0][Progress.INTERRUPT] = place
        _signal(watched.pid, signal.SIGUSR2)

    def stack(self, watched: Watched) -> str:
        """The worker's Python stacks, now."""
        return read_stack(self._attach(watched)[1], lambda: _signal(watched.pid, signal.SIGUSR1))

    def _attach(self, watched: Watched) -> tuple[NDArray[np.int64], int]:
        key = watched.pid, watched.block_fd
        if key not in self._known:
            block_fd, stack_fd = (
                os.open(f"/proc/{watched.pid}/fd/{fd}", os.O_RDWR) for fd in (watched.block_fd, watched.stack_fd)
            )
            block = SharedBlock.attach(block_fd, watched.spec.block_layout().size_bytes)
            self._known[key] = FleetArrays.bind(watched.spec, block.buffer).progress[watched.worker], stack_fd
        return self._known[key]


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Watchers:
    """The driver's side: a watcher per node, made when it is first asked for."""

    def __init__(self) -> None:
        self._by_node: dict[str, Any] = {}

    def on(self, node_id: str) -> Any:
        """The watcher of a node, which may still be starting."""
        if node_id not in self._by_node:
            strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
            self._by_node[node_id] = ray.remote(Watcher).options(num_cpus=0, scheduling_strategy=strategy).remote()
        return self._by_node[node_id]

    def forget(self, node_id: str) -> None:
        """End the watcher of a node; another is made if it is asked for again."""
        watcher = self._by_node.pop(node_id, None)
        if watcher is not None:
            end_actor(watcher)

    def close(self) -> None:
        """End them."""
        for node_id in list(self._by_node):
            self.forget(node_id)
