"""`envfleet serve` with environments on Ray: the same results as a local fleet, also after SIGKILL."""

from __future__ import annotations

import contextlib
from pathlib import Path

import httpx
import numpy as np
import pytest
from ray.cluster_utils import Cluster
from tests.service.conftest import Caller
from tests.service.serving import Command
from tests.waiting import PATIENCE_S

import envfleet

NUM_ENVS, NUM_STEPS, KILL = 3, 12, 6


def test_fleets_on_ray_go_on_after_the_service_was_killed(
    tmp_path: Path, ray_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster.address)
    database = f"sqlite:///{tmp_path / 'service.db'}"
    options = ("--env", "CartPole-v1", "--backend", "ray")
    actions = np.random.default_rng(0).integers(0, 2, (NUM_STEPS, NUM_ENVS))
    with contextlib.ExitStack() as stack, envfleet.make("CartPole-v1", NUM_ENVS, backend="serial") as local:
        command = stack.enter_context(Command(database, *options))
        token = command.read_token()
        caller = Caller(stack.enter_context(httpx.Client(base_url=command.url, timeout=PATIENCE_S)), token)
        fleet = caller.create("CartPole-v1", NUM_ENVS)
        observations = caller.call(f"/fleets/{fleet}/reset", seq=0, seeds=5)["observations"]
        np.testing.assert_array_equal(observations, local.reset(seed=5)[0])
        for k in range(NUM_STEPS):
            if k == KILL:
                command.kill()
                command = stack.enter_context(Command(database, *options, port=command.port))
            reply = caller.call(f"/fleets/{fleet}/step", seq=k + 1, actions=actions[k])
            np.testing.assert_array_equal(reply["observations"], local.step(actions[k])[0])
        caller.call(f"/fleets/{fleet}/close")
        assert command.stop() <= 0
