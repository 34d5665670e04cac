"""The Ray cluster that fleets of this process run on: found, or started for as long as there are fleets."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import ray
from ray.exceptions import RayError

from envfleet.core.cores import whole_cores
from envfleet.errors import EnvfleetError
from envfleet.transports.ray.connection import LOST_S, Connection, client_error, session


class Cluster:
    """The connection of this process to Ray. Thread-safe.

    A cluster that somebody else started is left alone, connection included. One that was started here ends when nobody
    holds it any more, or with this process.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._num_holders = 0
        self._started: str | None = None  # the session that was started here

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the cluster for a while; see `hold`."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    def hold(self) -> None:
        """Connect, if this process is not connected yet: to the running cluster, or to a new local one.

        The running one is that of the environment variable `RAY_ADDRESS` (`local` asks for a new one), or of
        `ray start` on this machine.

        Raises:
            EnvfleetError: There is one and it cannot be reached or used, or none and none can be started.
        """
        with self._lock:
            if not ray.is_initialized():
                self._connect()
            Connection().require_head(LOST_S)
            self._num_holders += 1

    def release(self) -> None:
        """Let go; ends a local cluster that was started here when nobody else holds it."""
        with self._lock:
            self._num_holders -= 1
            if self._num_holders == 0 and self._started is not None:
                if session() == self._started:
                    ray.shutdown()
                self._started = None

    @property
    def is_own(self) -> bool:
        """Whether it was started here."""
        return self._started is not None and session() == self._started

    def _connect(self) -> None:
        address = os.environ.get("RAY_ADDRESS", "")
        if address.startswith("ray://"):
            raise client_error()
        try:
            with _quietly():
                self._started = None
                if address not in ("", "local") or not self._start_local():
                    ray.init(log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise EnvfleetError(
                f"no Ray cluster could be reached or started: {error}. Call ray.init(...) before envfleet.make, with "
                "the address of your cluster or the options of a local one"
            ) from error

    def _start_local(self) -> bool:
        """Start a cluster of this machine alone; False if one is running here already."""
        try:
            # Ray takes the options of a new cluster only where there is none to connect to.
            ray.init(num_cpus=whole_cores(), include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except ValueError as error:
            if "existing cluster" in str(error):
                return False
            raise
        self._started = session()
        return True


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep Ray's greetings to itself."""
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def end_actor(actor: Any) -> None:
    """End an actor now; no error if it has ended."""
    with contextlib.suppress(RayError, ValueError):
        ray.kill(actor)


def num_cpus() -> int:
    """CPUs of the whole cluster, at least 1."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def in_words(resources: Mapping[str, Any]) -> str:
    """Write resources for people, without Ray's own markers for nodes."""
    shown = [
        f"{value:g} {name}"
        for name, value in sorted(resources.items())
        if not name.startswith("node:") and name not in ("memory", "object_store_memory")
    ]
    if "memory" in resources:
        shown.append(f"{resources['memory'] / 2**30:.1f} GiB memory")
    return ", ".join(shown) or "nothing"


def describe() -> str:
    """What the cluster has: nodes, resources in all, and what of them is free."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    each = "; ".join(f"{node['NodeManagerAddress']}: {in_words(node['Resources'])}" for node in nodes[:8])
    more = f"; and {len(nodes) - 8} more" if len(nodes) > 8 else ""
    return (
        f"{len(nodes)} node{'s' if len(nodes) != 1 else ''} ({each}{more}), of which is free: "
        f"{in_words(ray.available_resources())}"
    )


cluster = Cluster()
