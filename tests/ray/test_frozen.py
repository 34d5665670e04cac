"""Nodes, actors and heads that freeze, as when a machine hangs: no connection is closed, and nothing answers."""

from __future__ import annotations

import contextlib
import functools
import math
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from tests.ray.conftest import FAR, NEAR, NODE, actors, no_actor_stays, raylet_of

from envfleet.errors import WorkerDied
from envfleet.testing import CountingEnv
from envfleet.workers.transports.ray import cluster
from envfleet.workers.transports.ray.handle import ANSWER_S

ENV_FNS = [functools.partial(CountingEnv, 1000)] * 3


@contextlib.contextmanager
def frozen(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Stop processes, and let them continue afterwards."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


def test_node_that_freezes(ray_cluster: Cluster) -> None:
    """All its processes are stopped: its kernel still answers, but no beat comes."""
    node = ray_cluster.add_node(**NODE, resources={"cold": 3})
    options = {"resources": {"cold": 1}, "network_timeout_s": 4}
    fleet = FAR(ENV_FNS, workers=3, ray_options=options)
    fleet.reset(seed=0)
    raylet = psutil.Process(raylet_of(node))
    with frozen([raylet, *raylet.children(recursive=True)]):
        with pytest.raises(WorkerDied, match=r"silent for \d+ s, network_timeout_s=4"):
            fleet.step(np.zeros(3, np.int64))
        fleet.close()
    assert no_actor_stays()


def test_frozen_actors_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For stacks and for the places of workers that have just been started, however many; not when closing."""
    waits_s: list[float] = []
    get, wait = ray.get, ray.wait

    def counted(function: Any, refs: Any, *, timeout: float | None = None, **options: Any) -> Any:
        waits_s.append(math.inf if timeout is None else timeout)
        return function(refs, timeout=timeout, **options)

    with NEAR(ENV_FNS, workers=3) as fleet:
        fleet.reset(seed=0)
        workers = fleet.engine._pool.transport.processes
        monkeypatch.setattr(ray, "get", functools.partial(counted, get))
        monkeypatch.setattr(ray, "wait", functools.partial(counted, wait))
        with frozen([psutil.Process(int(name.split()[0])) for name in actors() if "ray::RayWorker" in name]):
            assert list(fleet.stacks().values()) == ["Ray does not answer"] * 3
            assert sum(waits_s) < 1.5 * ANSWER_S
            waits_s.clear()
            for worker in workers:
                worker._report, worker._started = None, worker._actor.stack.remote()
                worker._due_s = time.monotonic() + ANSWER_S
            assert [worker.place for worker in fleet.stats().workers] == ["Ray does not answer"] * 3
            assert sum(waits_s) < 1.5 * ANSWER_S
            waits_s.clear()
            fleet.close()
            assert not any(waits_s), "closing needs no explanation of how workers ended"
    assert no_actor_stays()


def test_stacks_of_a_fleet_that_was_idle() -> None:
    """Beats that nothing has read meanwhile do not make its workers silent."""
    with FAR(ENV_FNS, workers=1) as fleet:
        fleet.reset(seed=0)
        fleet.engine._pool.transport.processes[0]._heard_s -= 60.0
        assert "envfleet" in fleet.stacks()[0]


def test_a_silent_head_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many workers are closed without it; one that refuses connections answers at once each time."""
    calls: list[Any] = []

    def connect(error: type[OSError], address: Any, timeout_s: float) -> Any:
        calls.append(address)
        raise error

    monkeypatch.setattr(cluster, "_silent_until_s", {})
    for error, expected in ((ConnectionRefusedError, 3), (TimeoutError, 1)):
        calls.clear()
        monkeypatch.setattr(socket, "create_connection", functools.partial(connect, error))
        assert [cluster.has_head() for _ in range(3)] == [False] * 3
        assert len(calls) == expected
