"""The head of the cluster is gone, machine and all: what needs it says so, and nothing waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="module", autouse=True)
def ray_cluster() -> None:
    """None: the program starts its own."""


def test_head_is_lost() -> None:
    """Run in a separate program: Ray ends a program that was without a head for a minute."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.ray.lose_head"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "RAY_gcs_rpc_server_reconnect_timeout_s": "600"},  # a slow machine may take its time
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    attempts = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    outcomes = {one["what"]: one["outcome"] for one in attempts}
    assert outcomes["again tcp raise"].startswith("FleetBroken")
    assert outcomes["again shared-memory restart"].startswith("ResetNeeded")
    for what, outcome in outcomes.items():
        if what.startswith(("step ", "close ")):  # living workers do not need the head
            assert outcome == "done", what
    assert "the head of the Ray cluster does not answer at" in outcomes["lost shared-memory restart"]
    assert "WorkerDied" in outcomes["lost tcp raise"]
    assert "the head of the Ray cluster does not answer at" in outcomes["make"]
    assert outcomes["actors"] == "gone"
