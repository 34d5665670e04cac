"""The cluster that a fleet connects to, starts and ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from tests.ray.conftest import FAR, NEAR, connect, no_actor_stays, step_until_it_raises
from tests.waiting import PATIENCE_S

from envfleet.errors import EnvfleetError, WorkerDied
from envfleet.testing import CountingEnv

LOCAL = """
import sys
import envfleet
assert "ray" not in sys.modules, "importing envfleet imported Ray"
from envfleet.workers.transports.ray import cluster
cluster.whole_cores = lambda: 1
first = envfleet.make("CartPole-v1", backend="ray", workers=1, envs_per_worker=2)
import ray, os
pid = first.stats().workers[0].pid
own = os.getpriority(os.PRIO_PROCESS, 0)
assert os.getpriority(os.PRIO_PROCESS, pid) == own, "workers give way to every other program"
assert first.plan.reason.endswith(f"niceness {own}"), first.plan.reason
second = envfleet.make("CartPole-v1", 2, backend="ray", workers=1, ray_options={"shared_memory": False})
first.reset(seed=0)
first.step(first.action_space.sample())
first.close()
assert ray.is_initialized(), "the cluster ended with a fleet that was not the last"
second.reset(seed=0)
second.step(second.action_space.sample())
second.close()
assert not ray.is_initialized(), "the cluster did not end with the last fleet"
"""


def _without(name: str) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != name}


def test_local_cluster_lives_as_long_as_its_fleets(tmp_path: Path) -> None:
    """It is started without a word, holds more workers than there are cores, and ends with the last fleet."""
    ran = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", LOCAL],
        cwd=tmp_path,
        # Not the cluster of these tests, nor its settings.
        env={**_without("RAY_worker_niceness"), "RAY_ADDRESS": "local"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


STALE = """
import socket
import sys
import envfleet
import pytest
from envfleet.errors import EnvfleetError
from envfleet.workers.transports.ray import cluster
cluster.whole_cores = lambda: 1
file, named = sys.argv[1:]
if named:
    with pytest.raises(EnvfleetError, match=f"no Ray cluster answers at .*{named}.*to have a local cluster started"):
        envfleet.make("CartPole-v1", 2, backend="ray", workers=1)
else:
    with pytest.warns(RuntimeWarning, match=f"{file}, so a local one is started"):
        fleet = envfleet.make("CartPole-v1", 2, backend="ray", workers=1)
    fleet.reset(seed=0)
    fleet.close()
"""


@pytest.fixture
def stale_folder() -> Iterator[Path]:
    """A temporary folder for Ray, with a short path as Ray makes sockets in it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Path(folder, "ray").mkdir()
        yield Path(folder)


@pytest.mark.parametrize("is_named", [False, True], ids=["in-file", "named"])
@pytest.mark.parametrize("is_silent", [False, True], ids=["refused", "silent"])
def test_stale_address(stale_folder: Path, is_named: bool, is_silent: bool) -> None:
    """The address of a cluster that ended is not waited for, also if another program listens there by now.

    If only Ray's file has it, a local cluster is started.
    """
    file = stale_folder / "ray" / "ray_current_cluster"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if not is_silent:
            server.close()
        file.write_text(address)
        named = address if is_named else ""
        ran = subprocess.run(
            [sys.executable, "-c", STALE, file, named],
            env={**os.environ, "RAY_TMPDIR": str(stale_folder), "RAY_ADDRESS": named},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_nothing_stays_in_the_folder_of_other_programs(ray_cluster: Cluster) -> None:
    """The cluster of these tests writes its address, which is stale later, to a folder that they remove."""
    head: Any = ray_cluster.head_node
    assert Path(head.get_session_dir_path()).parents[1] == Path(os.environ["RAY_TMPDIR"])


WAYS = ((NEAR, "raise"), (FAR, "restart"))


def test_ray_is_shut_down_under_the_fleet(ray_cluster: Cluster) -> None:
    """Workers end with their actors, which is reported at once; Ray is not started again implicitly."""
    fleets = [way([CountingEnv] * 2, workers=1, on_failure=failure) for way, failure in WAYS]
    try:
        for fleet in fleets:
            fleet.reset(seed=0)
        ray.shutdown()
        for fleet, kind in zip(fleets, (WorkerDied, EnvfleetError), strict=True):
            with pytest.raises(kind, match="Ray was shut down"):
                step_until_it_raises(fleet)
        assert not ray.is_initialized()
    finally:
        for fleet in fleets:
            fleet.close()
        connect(ray_cluster)
    assert no_actor_stays()
