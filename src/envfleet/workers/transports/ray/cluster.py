"""The Ray cluster of this process's fleets: a running one, or one that is started for their lifetime."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import ray
from ray import _private
from ray.util import client
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from envfleet.errors import EnvfleetError
from envfleet.machine import whole_cores

_CONNECT_S = 5.0
_HTTP2_SETTINGS = b"\x04"  # the type of the first frame from an HTTP/2 server; follows three bytes of length

_silent_until_s: dict[str, float] = {}  # time before which a head that was silent is not asked again, by address


class Cluster:
    """The connection of this process to Ray. Thread-safe.

    A cluster that another program started is left alone, connection included. One that was started here ends with its
    last holder, or with this process.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._num_holders = 0
        self._started: str | None = None  # the session that was started here

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Connect, if this process is not connected yet: to the running cluster, or to a new local one.

        The running one is that of the environment variable `RAY_ADDRESS` (`local` asks for a new one), or of
        `ray start` on this machine; if the latter does not answer, a new one is started with a `RuntimeWarning`. A
        local one ends when nothing holds it.

        Raises:
            EnvfleetError: The cluster of `RAY_ADDRESS` does not answer within 5 seconds, a cluster cannot be used, or
                no local one can be started.
        """
        with self._lock:
            if not ray.is_initialized() or client.ray.is_connected():
                self._connect()
            require_head(session())
            self._num_holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_holders -= 1
                if self._num_holders == 0 and self.is_own:
                    ray.shutdown()

    @property
    def is_own(self) -> bool:
        """True if the cluster was started here."""
        return self._started is not None and session() == self._started

    def _connect(self) -> None:
        address = os.environ.get("RAY_ADDRESS", "")
        if address.startswith("ray://") or client.ray.is_connected():
            raise EnvfleetError(
                "this program reaches its cluster by a Ray client (ray://...), behind which the driver is another "
                "process; a fleet needs the driver itself. Run the program on a node of the cluster, by `ray job "
                'submit` or with ray.init(address="auto"), or make the fleet in a task or an actor'
            )
        logger = logging.getLogger("ray")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            if _finds_running_cluster():
                ray.init(log_to_driver=False, logging_level=logging.ERROR)
            else:
                ray.init("local", **local_settings(), log_to_driver=False, logging_level=logging.ERROR)
                self._started = session()
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise EnvfleetError(
                f"no Ray cluster could be reached or started: {error}. Call ray.init(...) before envfleet.make, with "
                "the address of your cluster or the options of a local one"
            ) from error
        finally:
            logger.setLevel(level)


cluster = Cluster()


def local_settings() -> dict[str, Any]:
    """Return arguments of `ray.init` for a cluster of this machine.

    Ray's own niceness of workers, 15, lets every other program go first: on a busy machine, steps take tens of times
    as long.
    """
    return {"num_cpus": whole_cores(), "include_dashboard": False, "_system_config": {"worker_niceness": 0}}


def _finds_running_cluster() -> bool:
    """Return whether Ray would connect to a running cluster, and not start one.

    Ray itself tries for minutes to reach an address at which no cluster answers.

    Raises:
        EnvfleetError: The cluster that the user asks for does not answer.
    """
    private: Any = _private  # half typed; Ray has no public function for this
    private.services.find_gcs_addresses.cache_clear()
    address = private.services.canonicalize_bootstrap_address(None)
    if address is None or _answers(address):
        return address is not None
    address = os.environ.get("RAY_ADDRESS")
    file = private.utils.get_ray_address_file(None)
    source = file if address in (None, "", "auto") else f"RAY_ADDRESS={address}"
    failure = f"no Ray cluster answers at {address}, the address in {source}"
    if address:
        raise EnvfleetError(
            f"{failure}: check that its head runs and can be reached from here, or unset RAY_ADDRESS"
            + (f" and delete {file}" if source == file else "")
            + " to have a local cluster started"
        )
    warnings.warn(
        f"{failure}, so a local one is started: start yours again with `ray start --head`, or delete the file, which "
        "a cluster leaves behind if it ends without `ray stop`",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


def _answers(address: str) -> bool:
    """Return whether the head of a cluster answers at `address`, and not another program, or a stopped one."""
    host, _, port = address.rpartition(":")
    deadline_s = time.monotonic() + _CONNECT_S
    with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S) as peer:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return True
        peer.settimeout(max(0.1, deadline_s - time.monotonic()))
        return peer.recv(9)[3:4] == _HTTP2_SETTINGS  # the head's server, gRPC, speaks first
    return False


def session() -> str | None:
    """Return a unique name of the current connection; `None` without one."""
    return str(ray.get_runtime_context().get_worker_id()) if ray.is_initialized() else None


def has_head() -> bool:
    """Return whether the head of the cluster can be reached. Without one Ray answers nothing, and waits.

    A silent head is not asked again for a while, so that workers are not closed one every few seconds.
    """
    address = ray.get_runtime_context().gcs_address if ray.is_initialized() else ""
    if not address or time.monotonic() < _silent_until_s.get(address, 0.0):
        return False
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S):
            return True
    except TimeoutError:
        _silent_until_s[address] = time.monotonic() + _CONNECT_S
    except OSError:
        pass
    return False


def require_head(since: str | None) -> None:
    """Check that the connection is still the one of that name, and that the head of the cluster can be reached.

    Raises:
        EnvfleetError: It is not, or it cannot.
    """
    if session() != since:
        raise EnvfleetError("Ray was shut down while the fleet was in use: make a new one")
    if not has_head():
        raise EnvfleetError(
            f"the head of the Ray cluster does not answer at {ray.get_runtime_context().gcs_address}, so no worker can "
            "be placed: see whether it still runs there, call ray.shutdown(), connect to a cluster that lives, and "
            "make a new fleet"
        )


def nodes() -> frozenset[str]:
    """Return the ids of the nodes that live, as far as Ray knows."""
    return frozenset(node["NodeID"] for node in ray.nodes() if node["Alive"])


def num_cpus() -> int:
    """Return the CPUs of the whole cluster, at least 1."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def describe_request(resources: Mapping[str, Any]) -> str:
    """Return what an actor asks for."""
    named = {"CPU": resources.get("num_cpus"), "GPU": resources.get("num_gpus"), "memory": resources.get("memory")}
    words = _in_words({**named, **resources.get("resources", {})})
    strategy = resources.get("scheduling_strategy")
    if isinstance(strategy, PlacementGroupSchedulingStrategy):
        words += f", a place in {ray.util.placement_group_table(strategy.placement_group)}"
    elif strategy is not None:
        words += f", scheduling_strategy={getattr(strategy, '__dict__', strategy)}"
    return words + (f", runtime_env={resources['runtime_env']}" if "runtime_env" in resources else "")


def describe() -> str:
    """Return what the cluster has: of each node, and what of it all is free."""
    nodes = [_in_words(node["Resources"]) for node in ray.nodes() if node["Alive"]]
    each = "; ".join(nodes[:8]) + (f"; and {len(nodes) - 8} more" if len(nodes) > 8 else "")
    return f"{len(nodes)} nodes ({each}), of which is free: {_in_words(ray.available_resources())}"


def _in_words(resources: Mapping[str, Any]) -> str:
    """Return resources in words, without Ray's own markers for nodes."""
    amounts = [
        f"{amount / 2**30:.1f} GiB {name}" if "memory" in name else f"{amount:g} {name}"
        for name, amount in sorted(resources.items())
        if amount and not name.startswith("node:")
    ]
    return ", ".join(amounts) or "nothing"
