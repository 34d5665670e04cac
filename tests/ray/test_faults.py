"""Actors and nodes are lost, and whatever waited for them is told, or goes on elsewhere."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from gymnasium.vector import AutoresetMode
from ray.cluster_utils import Cluster
from tests.conftest import SERIAL
from tests.fault.builders import FAULTY, NUM_ENVS, actions, assert_rows_equal, env_fns_with, run
from tests.ray.conftest import FAR, NEAR, NODE, RayBackend, no_actor_stays, node_of, raylet_of

from envfleet.errors import (
    FleetBroken,
    InvalidArgument,
    StepTimeout,
    SubEnvError,
    WorkerDied,
    WorkersUnplaced,
)
from envfleet.testing import CountingEnv
from envfleet.workers.env_group import GroupPlan
from envfleet.workers.transports.ray.transport import RayTransport

pytestmark = pytest.mark.timeout(100)

LOST_S = 15.0  # one second is promised for a process; Ray's word comes later, most of all on a busy machine
COUNTING = [functools.partial(CountingEnv, 1000)] * NUM_ENVS


def transport_of(fleet: Any) -> Any:
    return fleet.engine._crew.transport


def pids(fleet: Any) -> list[int]:
    return [worker.pid for worker in fleet.stats().workers]


def test_killed_while_idle(way: RayBackend) -> None:
    with way(COUNTING) as fleet:
        fleet.reset(seed=0)
        os.kill(pids(fleet)[1], signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(WorkerDied, match="killed by SIGKILL") as caught:
            fleet.step(actions(0))
        assert time.monotonic() - start < LOST_S
        assert (caught.value.worker, caught.value.env_indices, caught.value.exitcode) == (1, (2, 3), -9)
        with pytest.raises(FleetBroken):
            fleet.step(actions(0))


def test_actor_killed_in_the_middle_of_a_step(way: RayBackend) -> None:
    """`ray.kill`, as an operator or another driver may call it; another worker takes over."""
    with way(env_fns_with("hang", duration_s=1.0), on_failure="restart") as fleet:
        fleet.reset(seed=0)
        before = pids(fleet)
        timer = threading.Timer(0.3, ray.kill, [transport_of(fleet).processes[0]._actor])
        timer.start()
        _, rewards, _, truncated, infos = fleet.step(actions(0))
        timer.join()
        assert truncated.tolist() == [True, True, False, False]
        assert rewards[:2].tolist() == [0.0, 0.0]
        assert re.search(r"was lost on .* \(Ray: .*ray\.kill", infos["env_error"][0])
        stats = fleet.stats()
        assert [worker.restarts for worker in stats.workers] == [1, 0]
        assert pids(fleet)[0] != before[0]
        assert pids(fleet)[1] == before[1]
        fleet.close()
        assert no_actor_stays()


def test_exception_in_a_sub_environment() -> None:
    """What a sub-environment raises is an exception of the caller's, also by calls."""
    with FAR(env_fns_with("raise"), workers=1) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(SubEnvError) as caught:
            fleet.step(actions(0))
        assert caught.value.env_index == FAULTY
        assert caught.value.__cause__ is not None


def test_others_do_not_notice(way: RayBackend) -> None:
    """A sub-environment that ends its process over and over, and three that run as if nothing were."""
    mode = AutoresetMode.SAME_STEP
    healthy, _ = run(SERIAL, env_fns_with("raise", faulty=()), 4, mode)
    found, infos = run(way, env_fns_with("os_exit", nth=3), 4, mode, on_failure="restart")
    for index in (2, 3):
        assert_rows_equal(healthy[index], found[index], f"sub-environment {index}")
    assert any("env_error" in one for one in infos)


def test_overrun_ends_its_worker(way: RayBackend) -> None:
    """Also one that hangs in native code and holds the interpreter's lock; its rows are truncated, others go on."""
    env_fns = env_fns_with("native_loop", duration_s=60.0)
    with way(env_fns, on_failure="restart", step_timeout_s=1.0) as fleet:
        fleet.reset(seed=0)
        before = pids(fleet)
        start = time.monotonic()
        truncated, infos = fleet.step(actions(0))[3:]
        assert time.monotonic() - start < 1.0 + LOST_S
        assert truncated.tolist() == [True, True, False, False]
        assert "ran longer than" in infos["env_error"][FAULTY]
        assert pids(fleet)[1] == before[1]
        assert pids(fleet)[0] != before[0]


def test_overrun_is_told(way: RayBackend) -> None:
    with way(env_fns_with("hang", duration_s=60.0), workers=1, step_timeout_s=1.0) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(StepTimeout, match=r"faults\.py") as caught:
            fleet.step(actions(0))
        assert caught.value.env_index == FAULTY


def test_long_steps_of_many_rows_are_no_overrun(way: RayBackend) -> None:
    """The deadline is for each sub-environment, and a worker says which one it runs."""
    env_fns = [functools.partial(_SlowEnv, delay_s=0.4)] * NUM_ENVS
    with way(env_fns, workers=1, step_timeout_s=1.0) as fleet:
        fleet.reset(seed=0)
        start = time.monotonic()
        fleet.step(actions(0))
        assert time.monotonic() - start > 1.5


def test_worker_ends_with_its_driver(
    way: RayBackend, tmp_path: Path, ray_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL of the driver, while a worker hangs in native code."""
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster.address)
    program = DRIVER.format(shared_memory=way.shared_memory, path=str(tmp_path / "pid"))
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as driver:
        try:
            deadline = time.monotonic() + 60
            while not (tmp_path / "pid").exists():
                assert time.monotonic() < deadline
                assert driver.poll() is None, driver.communicate()[1]
                time.sleep(0.05)
            time.sleep(0.5)
            worker = psutil.Process(int((tmp_path / "pid").read_text()))
        finally:
            driver.kill()
        assert psutil.wait_procs([worker], timeout=10)[1] == []


DRIVER = """
import pathlib
import numpy as np
from tests.fault.builders import env_fns_with
from tests.ray.conftest import RayBackend
fleet = RayBackend("ray", 1, shared_memory={shared_memory})(env_fns_with("native_loop", duration_s=100.0))
fleet.reset(seed=0)
path = pathlib.Path({path!r})
path.with_suffix(".new").write_text(str(fleet.stats().workers[0].pid))
path.with_suffix(".new").rename(path)
fleet.step(np.zeros(4, np.int64))
"""


def test_node_removed_in_the_middle_of_a_step(ray_cluster: Cluster) -> None:
    """Its worker goes on elsewhere; the worker of the other node does not notice."""
    doomed = ray_cluster.add_node(**NODE, resources={"place": 1})
    # One worker a node: the head's other place is taken for now, and is the one left for the worker that is lost.
    taken = ray.util.placement_group([{"place": 1, "node:__internal_head__": 0.001}])
    ray.get(taken.ready(), timeout=30)
    env_fns = [functools.partial(_SlowEnv, delay_s=4.0 if index % 2 == 0 else 0.0) for index in range(NUM_ENVS)]
    with FAR(env_fns, on_failure="restart", ray_options={"resources": {"place": 1}}) as fleet:
        fleet.reset(seed=0)
        ray.util.remove_placement_group(taken)
        nodes = fleet.call(node_of)[::2]
        victim = nodes.index(raylet_of(doomed))
        fleet.send(actions(0))
        time.sleep(0.2)
        ray_cluster.remove_node(doomed, allow_graceful=False)
        batch = fleet.recv(timeout_s=60)
        assert np.flatnonzero(batch.truncated).tolist() == [2 * victim, 2 * victim + 1]
        assert not fleet.step(actions(1))[3].any()
        assert [worker.restarts for worker in fleet.stats().workers] == [int(k == victim) for k in (0, 1)]
        assert fleet.call(node_of)[2 * victim] == nodes[1 - victim]


class _SlowEnv(CountingEnv):
    """Takes its time for its first step."""

    def __init__(self, delay_s: float) -> None:
        super().__init__(1000)
        self._delay_s = delay_s

    def step(self, action: Any) -> Any:
        time.sleep(self._delay_s)
        self._delay_s = 0.0
        return super().step(action)


def test_no_place() -> None:
    """What nobody has is told within the limit, with what was asked for and what there is; nothing stays behind."""
    start = time.monotonic()
    with pytest.raises(WorkersUnplaced) as caught:
        NEAR(COUNTING, ray_options={"resources": {"unobtainium": 2}, "place_timeout_s": 1.0})
    assert time.monotonic() - start < 10.0
    error = caught.value
    assert error.workers == (0, 1)
    assert "2 unobtainium" in error.asked
    assert "2 place" in error.cluster
    assert "CPU" in str(error)
    assert no_actor_stays()


def test_no_place_for_a_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fleet is broken then, and closes as any other."""

    def find_none(self: RayTransport, plan: GroupPlan) -> Any:
        raise WorkersUnplaced([plan.worker], 1, 1.0, "1 place", "no node", None)

    with NEAR(COUNTING, workers=1, on_failure="restart") as fleet:
        fleet.reset(seed=0)
        monkeypatch.setattr(RayTransport, "_launch", find_none)
        os.kill(pids(fleet)[0], signal.SIGKILL)
        with pytest.raises(WorkersUnplaced, match="1 place"):
            fleet.step(actions(0))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"num_cpu": 1}, r"\['num_cpu'\]"),
        ({"num_cpus": -1}, "cannot be negative"),
        ({"resources": {"GPU": 1}}, "num_gpus"),
        ({"runtime_env": {"working_dir": "/nowhere/at/all"}}, "nowhere"),
        ({"place_timeout_s": 0}, "above 0"),
    ],
)
def test_options_are_checked(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        NEAR(COUNTING, ray_options=given)


def test_forgotten_fleet_is_given_back() -> None:
    """Nobody calls close(): the actors end when the object does."""
    import gc
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        fleet = NEAR(COUNTING, workers=1)
        fleet.reset(seed=0)
        del fleet
        gc.collect()
    assert no_actor_stays()
