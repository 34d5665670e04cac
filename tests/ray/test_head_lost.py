"""The head of the cluster is gone, machine and all: what needs it says so, and nothing waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ray.lose_head import LOST_S

SLACK_S = 15.0


@pytest.fixture(scope="module", autouse=True)
def ray_cluster() -> None:
    """None: the program starts its own."""


@pytest.mark.timeout(170)
def test_head_is_lost(tmp_path: Path) -> None:
    """In a program of its own: Ray ends a program that was without a head for a minute."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.ray.lose_head", str(tmp_path / "go on")],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "RAY_gcs_rpc_server_reconnect_timeout_s": "600"},  # a slow machine may take its time
        capture_output=True,
        text=True,
        timeout=160,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    told = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    outcomes = {one["what"]: one["outcome"] for one in told}
    assert max(one["took_s"] for one in told) < LOST_S + SLACK_S, told
    for name in ("shared-memory restart", "actor-calls raise", "actor-calls restart"):
        assert outcomes[f"again {name}"].startswith("FleetBroken")
    for what, outcome in outcomes.items():
        if what.startswith(("step ", "close ")):  # whoever can be reached without a head goes on
            assert outcome == "done", what
    assert "the head of the Ray cluster does not answer at" in outcomes["lost shared-memory restart"]
    assert "WorkerDied" in outcomes["lost actor-calls raise"]
    assert "the head of the Ray cluster does not answer at" in outcomes["lost actor-calls restart"]
    assert "the head of the Ray cluster does not answer at" in outcomes["make"]
    assert "WorkerDied" in outcomes["stuck"]
    assert "the head of the cluster" in outcomes["stuck"]
    assert outcomes["actors"] == "gone"
