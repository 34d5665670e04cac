"""Fleets of killed clients: another client continues or closes them."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.remote.conftest import TURBOFAN, Place
from tests.waiting import PATIENCE_S, wait_until
from typer.testing import CliRunner

import envfleet
from envfleet.cli.app import app
from envfleet.errors import CallPending, InvalidArgument, ServiceRefused

NUM_ENVS, NUM_STEPS = 4, 25
CLIENT = """
    import json, sys, time
    import numpy as np
    import envfleet

    url, token, mode, last = sys.argv[1:]
    fleet = envfleet.connect(url, "Turbofan-v0", 4, token=token, autoreset_mode=mode)
    fleet.reset(seed=3)
    if last != "reset":
        for actions in np.array(json.load(sys.stdin)):
            fleet.step(actions)
        rows = None if last == "step" else [2, 0]
        fleet.send(np.ones(4 if rows is None else 2, np.int64), rows)
    print(fleet.engine.fleet_ids[0], flush=True)
    time.sleep(3600)
"""


def leave_fleet(place: Place, token: str, mode: str, last: str, actions: Any) -> str:
    """Start a client, kill it when the service has made its last call, and return the id of its fleet."""
    command = [sys.executable, "-c", textwrap.dedent(CLIENT), place.url, token, mode, last]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(json.dumps(actions.tolist()).encode())
        client.stdin.close()
        fleet = client.stdout.readline().decode().strip()
        count = 1 if last == "reset" else NUM_STEPS + 2
        wait_until(lambda: place.service.store.count_events(fleet) == count)
        client.kill()
    return fleet


@pytest.fixture
def actions() -> Any:
    return np.random.default_rng(0).choice([0, 0, 0, 1, 2], (NUM_STEPS, NUM_ENVS))


@pytest.fixture
def local(request: pytest.FixtureRequest) -> Iterator[Any]:
    mode = request.getfixturevalue("mode")
    with envfleet.make(TURBOFAN, NUM_ENVS, backend="kernel", autoreset_mode=mode) as fleet:
        yield fleet


def assert_same(actual: Any, expected: Any) -> None:
    for one, other in zip(actual[:4], expected[:4], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
@pytest.mark.parametrize("last", ["step", "rows", "reset"])
def test_another_client_gets_what_a_killed_one_was_owed(
    place: Place, local: Any, actions: Any, mode: Any, last: str
) -> None:
    token = place.service.tokens.create(f"lost {mode} {last}")
    fleet_id = leave_fleet(place, token, mode, last, actions)
    first, _ = local.reset(seed=3)
    owed: Any = first, np.zeros(NUM_ENVS), np.zeros(NUM_ENVS, np.bool_), np.zeros(NUM_ENVS, np.bool_)
    rows = np.arange(NUM_ENVS)
    if last != "reset":
        for each in actions:
            local.step(each)
        rows = rows if last == "step" else np.array([2, 0])
        local.send(np.ones(len(rows), np.int64), rows)
        owed = local.recv(env_indices=rows)
    with envfleet.connect(place.url, TURBOFAN, NUM_ENVS, token=token, autoreset_mode=mode, resume=True) as fleet:
        engine: Any = fleet.engine
        assert engine.fleet_ids == (fleet_id,)
        with pytest.raises(CallPending, match=r"call recv\(\)"):
            fleet.step(actions[0])
        batch = fleet.recv()
        assert_same(batch, owed)
        np.testing.assert_array_equal(batch.env_indices, rows)
        np.testing.assert_array_equal(fleet.episode_returns, local.episode_returns)
        np.testing.assert_array_equal(fleet.episode_lengths, local.episode_lengths)
        assert fleet.terminated_indices == local.terminated_indices
        for each in actions:
            assert_same(fleet.step(each), local.step(each))
            np.testing.assert_array_equal(fleet.episode_returns, local.episode_returns)
    assert place.service.store.is_closed(fleet_id)


def test_a_lost_fleet_can_be_closed_so_that_the_quota_is_free(place: Place, actions: Any) -> None:
    token = place.service.tokens.create("full", max_live_envs=NUM_ENVS)
    fleet_id = leave_fleet(place, token, "NEXT_STEP", "step", actions)
    with pytest.raises(ServiceRefused, match="live_envs"):
        envfleet.connect(place.url, TURBOFAN, NUM_ENVS, token=token)
    runner = CliRunner()
    options = ["--token", token]
    assert fleet_id in runner.invoke(app, ["status", place.url, *options], env={"COLUMNS": "200"}).stdout
    for wrong, message in ((fleet_id[:8], "is not the id of a fleet"), ("0" * 24, "does not exist")):
        refused = runner.invoke(app, ["close", place.url, wrong, *options])
        assert (refused.exit_code, message in " ".join(refused.stderr.replace("│", "").split())) == (2, True)
    assert runner.invoke(app, ["close", place.url, fleet_id, *options]).exit_code == 0
    envfleet.connect(place.url, TURBOFAN, NUM_ENVS, token=token, resume=True).close()  # a new one


def test_resuming_asks_for_one_fleet_of_the_same_arguments(place: Place) -> None:
    token = place.service.tokens.create("many")

    def connect(**more: Any) -> Any:
        values: dict[str, Any] = {"num_envs": 2, "token": token, "step_size": 10, "patience_s": PATIENCE_S, **more}
        return envfleet.connect(place.url, "Turbofan-v0", **values)

    fleets = [connect(), connect(), connect(step_size=20), connect(num_envs=3)]
    ids = [fleet.engine.fleet_ids[0] for fleet in fleets]
    with pytest.raises(InvalidArgument, match=f"2 open fleets match: pass fleet_id=, one of .*{ids[0]}"):
        connect(resume=True)
    with pytest.raises(InvalidArgument, match=r"has num_envs=3, but 2 was passed"):
        connect(fleet_id=ids[3])
    with pytest.raises(InvalidArgument, match="pass one, a fleet at a time"):
        envfleet.connect([place.url] * 2, "Turbofan-v0", 2, token=token, resume=True)
    with connect(step_size=20, resume=True) as fleet:
        assert fleet.engine.fleet_ids[0] == ids[2]
        observations, _ = fleet.reset(seed=0)  # it was never reset, so that nothing is owed
    with connect(fleet_id=ids[1]) as fleet:
        fleet.reset(seed=0)
        with connect(fleet_id=ids[1]) as other:
            fresh, _ = other.reset(seed=5)  # instead of recv()
            assert other.step(np.zeros(2, np.int64))[1].shape == (2,)
    assert fresh.shape != observations.shape
    for fleet in (fleets[0], fleets[3]):
        fleet.close()
    for fleet in fleets[1:3]:
        fleet.close()
