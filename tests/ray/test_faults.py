"""Lost actors and nodes are reported, or replaced elsewhere."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
import ray
from gymnasium.vector import AutoresetMode
from ray.cluster_utils import Cluster
from tests.conftest import SERIAL
from tests.fault.builders import FAULTY, NUM_ENVS, actions, env_fns_with
from tests.ray.conftest import FAR, MIXED, NEAR, RayBackend, no_actor_stays
from tests.waiting import PATIENCE_S, wait_until

from envfleet.errors import InvalidArgument, StepTimeout, SubEnvError, WorkerDied, WorkersUnplaced
from envfleet.testing import FaultyEnv
from envfleet.testing.compare import mismatches
from envfleet.workers.messages import GroupPlan
from envfleet.workers.transports.ray.transport import RayTransport

OVERRUN_S = 3.0
MODE = AutoresetMode.SAME_STEP
SOUND = env_fns_with("raise", faulty=(), nth=0)  # until one is given a fault


@pytest.fixture(scope="module")
def fleet() -> Iterator[Any]:
    """Two workers, of which the second is reached over TCP; one that is lost is replaced."""
    with MIXED(SOUND, on_failure="restart", step_timeout_s=OVERRUN_S, autoreset_mode=MODE) as fleet:
        yield weakref.proxy(fleet)  # what pytest keeps of a test shall not keep the fleet


def transport_of(fleet: Any) -> Any:
    return fleet.engine._pool.transport


def pids(fleet: Any) -> list[int]:
    return [worker.pid for worker in fleet.stats().workers]


def give_fault(fleet: Any, fault: str, env_index: int, duration_s: float = 60.0) -> None:
    fleet.set_attr("duration_s", duration_s)
    fleet.set_attr("fault", [fault if index == env_index else None for index in range(NUM_ENVS)])


def lose_worker(fleet: Any, fault: str, env_index: int, act: Any = lambda: None, duration_s: float = 60.0) -> str:
    """Step a fleet with the fault in the second step of a sub-environment; return the error in its infos.

    The worker is replaced, its rows end as truncated, and those of the other one are as if nothing were.
    """
    worker = env_index // 2
    rows = slice(2 * worker, 2 * worker + 2)
    others = [index for index in range(NUM_ENVS) if index // 2 != worker]
    restarts = [one.restarts for one in fleet.stats().workers]
    before = pids(fleet)
    with SERIAL(SOUND, autoreset_mode=MODE) as healthy:
        for one in (healthy, fleet):
            one.reset(seed=0)
        fleet.set_state(healthy.get_state())
        for count in range(5):
            if count == 1:
                give_fault(fleet, fault, env_index, duration_s)
            fleet.send(actions(count))
            if count == 1:
                act()
            actual = fleet.recv(timeout_s=PATIENCE_S)
            expected = healthy.step(actions(count))
            each = zip(
                expected[:4], (actual.observations, actual.rewards, actual.terminated, actual.truncated), strict=True
            )
            assert not [step for one, other in each if (step := mismatches(one[others], other[others]))]
            if count == 1:
                assert actual.truncated[rows].tolist() == [True, True]
                assert actual.rewards[rows].tolist() == [0.0, 0.0]
                text = str(actual.infos["env_error"][env_index])
    assert [one.restarts for one in fleet.stats().workers] == [n + (k == worker) for k, n in enumerate(restarts)]
    assert [now == then for now, then in zip(pids(fleet), before, strict=True)] == [k != worker for k in (0, 1)]
    return text


@pytest.mark.parametrize("env_index", [0, 3], ids=["shared-memory", "tcp"])
def test_overrun_ends_its_worker(fleet: Any, env_index: int) -> None:
    """Also one that hangs in native code and holds the interpreter's lock."""
    assert "ran longer than" in lose_worker(fleet, "native_loop", env_index)


@pytest.mark.parametrize("env_index", [0, 2], ids=["shared-memory", "tcp"])
def test_a_worker_that_ends_is_replaced(fleet: Any, env_index: int) -> None:
    """By the same actor, since Ray takes seconds to start another one."""
    worker = env_index // 2
    actor = transport_of(fleet).processes[worker]._actor
    assert "exited with code 3" in lose_worker(fleet, "os_exit", env_index)
    assert transport_of(fleet).processes[worker]._actor is actor


def test_actor_killed_in_the_middle_of_a_step(fleet: Any) -> None:
    """`ray.kill`, as an operator or another driver may call it; another worker takes over."""
    actor = transport_of(fleet).processes[0]._actor
    text = lose_worker(fleet, "hang", 1, lambda: ray.kill(actor), duration_s=1.0)
    assert re.search(r"was lost on .* \(Ray: .*ray\.kill", text)


def test_an_end_is_reported_until_it_is_taken_in() -> None:
    """Also if a wait for another worker ends at the moment at which it is noticed, and ignores it."""
    with FAR(SOUND) as fleet:
        fleet.reset(seed=0)
        transport = transport_of(fleet)
        ray.kill(transport.processes[1]._actor)
        wait_until(transport.processes[1].is_lost_now)
        assert all(transport.waiter.sleep(0.0) for _ in range(5))
        with pytest.raises(WorkerDied):
            fleet.step(actions(0))


def test_no_place_for_a_successor(fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fleet is broken then, and closes as any other."""

    def find_none(self: RayTransport, plan: GroupPlan) -> Any:
        raise WorkersUnplaced([plan.worker], 1, 1.0, "1 place", "no node", None)

    fleet.reset(seed=0)
    monkeypatch.setattr(RayTransport, "_launch", find_none)
    os.kill(pids(fleet)[0], signal.SIGKILL)
    with pytest.raises(WorkersUnplaced, match="1 place"):
        fleet.step(actions(0))
    fleet.close()
    assert no_actor_stays()


class TableEnv(FaultyEnv):
    """Has large observations, and rewards that come from the fleet's shared data."""

    def __init__(self, table: Any) -> None:
        super().__init__(None, nth=0, length=1000)
        self.observation_space = gymnasium.spaces.Box(0, 1, (500, 100), np.float64)
        self._table = table

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        return np.zeros((500, 100)), {}

    def step(self, action: Any) -> Any:
        super().step(action)
        return np.zeros((500, 100)), float(self._table[action]), False, False, {}

    def is_writeable(self) -> bool:
        return bool(self._table.flags.writeable)


def test_one_worker_of_several_sub_environments(way: RayBackend) -> None:
    """Has the shared data, read-only; raises what they raise; ends when one overruns, not when all together do."""
    env_fns = [functools.partial(TableEnv)] * NUM_ENVS
    with way(env_fns, workers=1, step_timeout_s=OVERRUN_S, shared={"table": np.arange(4) + 5.0}) as fleet:
        assert fleet.reset(seed=0)[0].shape == (NUM_ENVS, 500, 100)
        assert fleet.step(np.arange(4))[1].tolist() == [5.0, 6.0, 7.0, 8.0]
        assert fleet.call("is_writeable") == (False,) * NUM_ENVS

        fleet.set_attr("duration_s", OVERRUN_S / 3)
        fleet.set_attr("fault", "slow")
        fleet.step(actions(0))  # four of them take longer than OVERRUN_S

        give_fault(fleet, "raise", FAULTY)
        with pytest.raises(SubEnvError) as raised:
            fleet.step(actions(0))
        assert raised.value.env_index == FAULTY
        assert raised.value.__cause__ is not None

        fleet.reset(seed=0)
        give_fault(fleet, "hang", FAULTY)
        with pytest.raises(StepTimeout, match=r"faults\.py") as overrun:
            fleet.step(actions(0))
        assert overrun.value.env_index == FAULTY


def test_workers_end_with_their_driver(tmp_path: Path, ray_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL of the driver, while its workers, one by shared memory and one over TCP, hang in native code."""
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster.address)
    program = DRIVER.format(path=str(tmp_path / "pids"))
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as driver:
        try:
            wait_until(lambda: (tmp_path / "pids").exists() or driver.poll() is not None)
            assert driver.poll() is None, driver.communicate()[1]
            workers = [psutil.Process(int(pid)) for pid in (tmp_path / "pids").read_text().split()]
            idle_s = [worker.cpu_times().user for worker in workers]
            wait_until(lambda: all(w.cpu_times().user > s + 0.2 for w, s in zip(workers, idle_s, strict=True)))
        finally:
            driver.kill()
        assert len(workers) == 2
        assert no_actor_stays()
        assert psutil.wait_procs(workers, timeout=PATIENCE_S)[1] == []


DRIVER = """
import pathlib
import numpy as np
from tests.fault.builders import env_fns_with
from tests.ray.conftest import MIXED
fleet = MIXED(env_fns_with("native_loop", faulty=(1, 3), duration_s=1000.0))
fleet.reset(seed=0)
path = pathlib.Path({path!r})
path.with_suffix(".new").write_text(" ".join(str(worker.pid) for worker in fleet.stats().workers))
path.with_suffix(".new").rename(path)
fleet.step(np.zeros(4, np.int64))
"""


def test_no_place() -> None:
    """A missing resource is reported within the limit, with the request and the cluster; no actor stays."""
    with pytest.raises(WorkersUnplaced) as caught:
        NEAR(SOUND, ray_options={"resources": {"unobtainium": 2}, "place_timeout_s": 1.0})
    error = caught.value
    assert error.workers == (0, 1)
    assert "2 unobtainium" in error.asked
    assert "2 place" in error.cluster
    assert "CPU" in str(error)
    assert no_actor_stays()


@pytest.mark.parametrize(
    ("ray_options", "words"),
    [
        ({"num_cpu": 1}, r"\['num_cpu'\]"),
        ({"num_cpus": -1}, "cannot be negative"),
        ({"resources": {"GPU": 1}}, "num_gpus"),
        ({"runtime_env": {"working_dir": "/nowhere/at/all"}}, "nowhere"),
        ({"place_timeout_s": 0}, "above 0"),
    ],
)
def test_options_are_checked(ray_options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        NEAR(SOUND, ray_options=ray_options)
