"""Resources and environment variables of workers on Ray; unavailable resources are reported in time."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
from tests.ray.conftest import FAR, NEAR, NODE, no_actor_stays, node_of, raylet_of, step_until_it_raises
from tests.waiting import PATIENCE_S, wait_until

from envfleet.errors import WorkerDied, WorkersUnplaced
from envfleet.testing import CountingEnv
from envfleet.workers.transports.ray.cluster import session
from envfleet.workers.transports.ray.transport import RayTransport

PORT = 23_719
COUNTING = [functools.partial(CountingEnv, 100_000)] * 2
ONLY_HERE = {"resources": {"only_here": 1}}


def test_forgotten_fleet_leaves_the_cluster_as_it_was() -> None:
    """Workers default to one per CPU, and have the environment as asked; without close() they end with the object."""
    before = session()
    assert before is not None
    options = {"runtime_env": {"env_vars": {"ENVFLEET_TEST": "as asked"}}, "scheduling_strategy": "SPREAD"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        fleet = NEAR(COUNTING, workers=None, ray_options=options)
        assert fleet.plan.num_workers == min(2, int(ray.cluster_resources()["CPU"]))
        assert fleet.call(lambda env: os.environ["ENVFLEET_TEST"]) == ("as asked",) * 2
        del fleet
        gc.collect()
    assert no_actor_stays()
    assert session() == before


@pytest.fixture(scope="module")
def other_node(ray_cluster: Cluster) -> Any:
    """A second node with one place, which the last test of it takes away."""
    return ray_cluster.add_node(**NODE, resources={"place": 1})


def test_placement_group(ray_cluster: Cluster, other_node: Any) -> None:
    """Workers go into the bundles, of which one is on either node and holds one worker; nothing else has room there."""
    group = ray.util.placement_group([{"place": 1}] * 2, strategy="STRICT_SPREAD")
    bundles = PlacementGroupSchedulingStrategy(group)
    with NEAR(
        COUNTING, ray_options={"scheduling_strategy": bundles, "resources": {"place": 1}, "num_cpus": 0}
    ) as fleet:
        assert set(fleet.call(node_of)) == {raylet_of(ray_cluster.head_node), raylet_of(other_node)}
    ray.util.remove_placement_group(group)


def test_node_removed_in_the_middle_of_a_step(ray_cluster: Cluster, other_node: Any, tmp_path: Path) -> None:
    """Its worker is replaced on another node; the worker there is not affected; no worker is placed on it again."""
    # One worker a node: the head's other place is taken for now, and is the one left for the worker that is lost.
    taken = ray.util.placement_group([{"place": 1, "node:__internal_head__": 0.001}])
    ray.get(taken.ready(), timeout=PATIENCE_S)
    env_fns = [functools.partial(_HeldEnv, tmp_path if index % 2 == 0 else None) for index in range(4)]
    with FAR(env_fns, on_failure="restart", ray_options={"resources": {"place": 1}}) as fleet:
        fleet.reset(seed=0)
        ray.util.remove_placement_group(taken)
        nodes = fleet.call(node_of)[::2]
        victim = nodes.index(raylet_of(other_node))
        fleet.send(np.zeros(4, np.int64))
        wait_until(lambda: len(list(tmp_path.glob("held-*"))) == 2)
        ray_cluster.remove_node(other_node, allow_graceful=False)
        (tmp_path / "removed").touch()
        (tmp_path / f"held-{fleet.stats().workers[1 - victim].pid}").unlink()
        batch = fleet.recv(timeout_s=PATIENCE_S)
        assert np.flatnonzero(batch.truncated).tolist() == [2 * victim, 2 * victim + 1]
        assert not fleet.step(np.zeros(4, np.int64))[3].any()
        assert [worker.restarts for worker in fleet.stats().workers] == [int(k == victim) for k in (0, 1)]
        assert fleet.call(node_of)[2 * victim] == nodes[1 - victim]
    strategy = NodeAffinitySchedulingStrategy(other_node.node_id, soft=False)
    assert_unplaced({"scheduling_strategy": strategy}, other_node.node_id)


def test_node_lost_without_another_place(ray_cluster: Cluster) -> None:
    """Its workers end; where they are to be replaced, the error says what no node has."""
    node = ray_cluster.add_node(**NODE, resources={"only_here": 2})
    fleets = {way: FAR(COUNTING, workers=1, on_failure=way, ray_options=ONLY_HERE) for way in ("raise", "restart")}
    for fleet in fleets.values():
        fleet.reset(seed=0)
        fleet.engine._pool.transport._limit_s = 1.0  # to place successors
    ray_cluster.remove_node(node, allow_graceful=False)
    for way, error, words in (("raise", WorkerDied, "Ray"), ("restart", WorkersUnplaced, "1 only_here")):
        with pytest.raises(error, match=words):
            step_until_it_raises(fleets[way])
        fleets[way].close()
    assert no_actor_stays()


def test_successor_that_ray_places_on_a_dead_node(ray_cluster: Cluster) -> None:
    """As Ray does until it notices the death, for the only free place is there; then another node takes it."""
    node = ray_cluster.add_node(**NODE, resources={"place": 2})
    taken = ray.util.placement_group([{"place": 2, "node:__internal_head__": 0.001}])
    ray.get(taken.ready(), timeout=PATIENCE_S)
    options = {"resources": {"place": 1}, "place_timeout_s": PATIENCE_S}
    with FAR(COUNTING, workers=1, on_failure="restart", ray_options=options) as fleet:
        fleet.reset(seed=0)
        assert set(fleet.call(node_of)) == {raylet_of(node)}
        raylet = psutil.Process(raylet_of(node))
        for process in [raylet, *raylet.children(recursive=True)]:
            process.kill()
        while not fleet.step(np.zeros(2, np.int64))[3].all():
            pass
        ray.util.remove_placement_group(taken)
        assert fleet.step(np.zeros(2, np.int64))[0].shape[0] == 2
        assert set(fleet.call(node_of)) == {raylet_of(ray_cluster.head_node)}
    ray_cluster.remove_node(node, allow_graceful=False)


class _HeldEnv(CountingEnv):
    """Stays in a step as long as the file exists that it leaves there; with a file `removed` it does not stay."""

    def __init__(self, folder: Path | None) -> None:
        super().__init__(1000)
        self._folder = folder

    def step(self, action: Any) -> Any:
        if self._folder is not None and not (self._folder / "removed").exists():
            marker = self._folder / f"held-{os.getpid()}"
            marker.touch()
            while marker.exists():
                time.sleep(0.01)
        return super().step(action)


@pytest.mark.parametrize(("options", "left_s"), [({}, 60.0), ({"place_timeout_s": PATIENCE_S}, 0.5)])
def test_placing_continues_while_it_makes_progress(
    options: dict[str, Any], left_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default, a busy machine may take its time for many workers; a limit of the user is kept."""
    begin = RayTransport._begin
    lefts_s: list[float] = []

    def begin_late(self: RayTransport, number: int, process: Any) -> None:
        self._left_s = 0.5
        begin(self, number, process)
        lefts_s.append(self._left_s)

    monkeypatch.setattr(RayTransport, "_begin", begin_late)
    with NEAR(COUNTING, workers=1, ray_options=options):
        assert lefts_s == [left_s]


def test_bundle_that_nobody_has() -> None:
    """Any bundle of the group, and a certain one."""
    group = ray.util.placement_group([{"unobtainium": 1, "CPU": 1}])
    words = r"a place in .*unobtainium.*PENDING"
    assert_unplaced({"scheduling_strategy": PlacementGroupSchedulingStrategy(group)}, words)
    assert_unplaced({"scheduling_strategy": PlacementGroupSchedulingStrategy(group, 0)}, words)
    ray.util.remove_placement_group(group)
    assert no_actor_stays()


def assert_unplaced(options: dict[str, Any], words: str) -> None:
    with pytest.raises(WorkersUnplaced, match=words):
        NEAR(COUNTING, workers=1, ray_options={**options, "place_timeout_s": 1.0})


CLIENT = f"""
import os
import pytest, ray
import envfleet
from envfleet.errors import EnvfleetError
os.environ["RAY_ADDRESS"] = "ray://127.0.0.1:{PORT}"
with pytest.raises(EnvfleetError, match=r"ray job submit"):  # not connected yet
    envfleet.make("CartPole-v1", 2, backend="ray")
assert not ray.is_initialized()
ray.init()
with pytest.raises(EnvfleetError, match=r"ray job submit"):
    envfleet.make("CartPole-v1", 2, backend="ray")
assert ray.is_initialized()


@ray.remote(num_cpus=0)
def drive():  # what the error advises
    with envfleet.make("CartPole-v1", 2, backend="ray", workers=1, ray_options={{"num_cpus": 0.01}}) as fleet:
        fleet.reset(seed=0)
        return fleet.step([0, 1])[1].tolist()


assert ray.get(drive.remote()) == [1.0, 1.0]
"""


def _is_served() -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", PORT)):
        return True
    return False


@pytest.fixture
def client_server(ray_cluster: Cluster) -> Iterator[None]:
    """Server of `ray://`, which `ray start --head` starts too."""
    command = [sys.executable, "-m", "ray.util.client.server", "--mode", "specific-server", "--host", "127.0.0.1"]
    with subprocess.Popen(
        [*command, "--port", str(PORT), "--address", ray_cluster.address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            wait_until(_is_served)
            yield
        finally:
            server.kill()


@pytest.mark.usefixtures("client_server")
def test_ray_client() -> None:
    """A program connected by `ray://` gets an error that names an alternative."""
    ran = subprocess.run(
        [sys.executable, "-c", CLIENT], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
