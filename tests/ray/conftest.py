"""One Ray cluster for tests/ray and tests/rllib, and the backend in all its ways."""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from tests.conftest import Backend, Resources, take_stock
from tests.waiting import PATIENCE_S

from envfleet.workers.transports.launch import server
from envfleet.workers.transports.ray.transport import RayTransport
from envfleet.workers.transports.socket import Greeting

OBJECT_STORE_BYTES = 80_000_000
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES}
# Without the autoscaler and the reader of logs, each of which costs a second to start.
HEAD = {
    **NODE, "include_dashboard": False, "include_log_monitor": False, "no_monitor": True, "resources": {"place": 2},
}  # fmt: skip

# Ray gives way to everybody else on the machine; here workers would then take half a minute to come and to go.
os.environ.setdefault("RAY_worker_niceness", "0")


@dataclasses.dataclass(frozen=True)
class RayBackend(Backend):
    """The Ray backend, with little asked for; `shared_memory` decides which way data goes."""

    shared_memory: bool = True

    def __call__(self, env_fns: Any, **options: Any) -> Any:
        ray_options = {"num_cpus": 0.01, "shared_memory": self.shared_memory, **options.pop("ray_options", {})}
        return super().__call__(env_fns, ray_options=ray_options, **options)

    def __str__(self) -> str:
        return "shared-memory" if self.shared_memory else "tcp"


NEAR = RayBackend("ray", 2)
FAR = RayBackend("ray", 2, shared_memory=False)


class MixedBackend(RayBackend):
    """Two workers: the first by shared memory, the second and its successors over TCP, as if far away."""

    def __call__(self, env_fns: Any, **options: Any) -> Any:
        welcome = RayTransport._welcome

        def turn_away(self: RayTransport, greeting: Greeting, peer: socket.socket, proof: bytes) -> None:
            if self._numbers.get(greeting.ticket // 2) == 1 and peer.family == socket.AF_UNIX:
                peer.close()
            else:
                welcome(self, greeting, peer, proof)

        with pytest.MonkeyPatch.context() as patch:  # the listeners of this fleet keep it
            patch.setattr(RayTransport, "_welcome", turn_away)
            return super().__call__(env_fns, **options)

    def __str__(self) -> str:
        return "mixed"


MIXED = MixedBackend("ray", 2)


@pytest.fixture(params=(NEAR, FAR), ids=str)
def way(request: pytest.FixtureRequest) -> RayBackend:
    """The Ray backend by shared memory, and over TCP."""
    return request.param


KEPT = pytest.StashKey[Cluster]()


def shared_cluster(config: pytest.Config) -> Cluster:
    """Return the cluster of this test run, to which this process is connected; started by the first call."""
    if KEPT not in config.stash:
        config.stash[KEPT] = Cluster(initialize_head=True, head_node_args=HEAD)
        connect(config.stash[KEPT])
    return config.stash[KEPT]


def connect(cluster: Cluster) -> None:
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)


@pytest.fixture(scope="module", autouse=True)
def ray_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The shared cluster, which has a head alone; tests may add nodes."""
    cluster = shared_cluster(request.config)
    yield cluster
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the cluster unless a test of tests/ray or tests/rllib follows."""
    stays = nextitem is not None and nextitem.path.parent.name in ("ray", "rllib")
    if not stays and KEPT in item.config.stash:
        ray.shutdown()
        item.config.stash[KEPT].shutdown()
        del item.config.stash[KEPT]


@pytest.fixture(scope="module", autouse=True)
def _nothing_leaks(ray_cluster: Cluster) -> Iterator[None]:
    """As everywhere, but for what belongs to Ray: only its actors must be gone."""
    before = take_stock()
    yield
    deadline = time.monotonic() + PATIENCE_S
    while True:
        gc.collect()
        leaked = {**_without_ray(take_stock()).beyond(before), "actors": actors()}
        if not any(leaked.values()):
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind by this module: {leaked}")
        time.sleep(0.1)


def actors() -> list[str]:
    """The processes of envfleet's actors and of their workers; not the fork server of this process, which stays."""
    own = None if server._process is None else server._process.pid
    processes = []
    for child in [one for one in psutil.Process().children(recursive=True) if one.pid != own]:
        with_name = " ".join(_command(child))
        if "ray::RayWorker" in with_name or "transports.forkserver" in with_name:
            processes.append(f"{child.pid} {with_name}")
    return processes


def node_of(env: Any) -> int:
    """The node on which a sub-environment runs, by the process id of its raylet."""
    return int(os.environ["RAY_RAYLET_PID"])


def raylet_of(node: Any) -> int:
    """That process id; Ray types a node as what it is before the start."""
    pid: int = node.all_processes["raylet"][0].process.pid
    return pid


def step_until_it_raises(fleet: Any) -> None:
    while True:
        fleet.step(np.zeros(fleet.num_envs, np.int64))


def no_actor_stays() -> bool:
    """Wait for the end of all actors, which Ray reports before the process is gone; return whether they ended."""
    deadline = time.monotonic() + PATIENCE_S
    while actors() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not actors()


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _without_ray(resources: Resources) -> Resources:
    """Leave out the processes and memory of Ray, which come and go as it likes; ours have names."""
    threads = frozenset(name for name in resources.threads if not name.startswith(("PythonGCThread", "ray_")))
    return Resources(frozenset(), threads, frozenset(), _ours(resources))


def _ours(resources: Resources) -> frozenset[str]:
    return frozenset(name for name in resources.descriptors if "envfleet" in name or "pipe:" in name)
