"""Fleets of environments behind OpenEnv's own server."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import httpx
import numpy as np
import pytest
from gymnasium import spaces
from tests.remote.conftest import Place
from tests.waiting import wait_until

import envfleet
from envfleet.errors import InvalidArgument, ServiceUnreachable, SubEnvError
from envfleet.remote.openenv import OpenEnv, _read_fields

ROOT = Path(__file__).parents[2]
SESSIONS = 4


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Return the address of a server of `openenv-core` with CartPole, in another process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.remote.openenv_server", str(port), str(SESSIONS)]
    with subprocess.Popen(command, cwd=ROOT) as server:

        def answers() -> bool:
            assert server.poll() is None, "the server ended"
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
            return False

        try:
            wait_until(answers, "the server answers")
            yield f"openenv+ws://127.0.0.1:{port}"
        finally:
            server.kill()


def test_many_environments_play_as_one_vector_environment(url: str) -> None:
    local = gym.make_vec("CartPole-v1", 3, "sync")
    with envfleet.connect(url, num_envs=3) as fleet:
        assert fleet.single_action_space == spaces.Discrete(2)
        assert fleet.single_observation_space == spaces.Box(-np.inf, np.inf, (4,), np.float64)
        expected, _ = local.reset(seed=5)
        np.testing.assert_array_equal(fleet.reset(seed=5)[0], expected)
        for k in range(30):
            actions = np.array([1, 1, k % 2])
            np.testing.assert_equal(fleet.step(actions)[:3], local.step(actions)[:3])
    local.close()


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_autoreset_modes_and_send_work(mode: Any, url: str) -> None:
    with envfleet.connect(url, num_envs=2, autoreset_mode=mode, record_episodes=True) as fleet:
        fleet.reset(seed=5)
        terminated = np.zeros(2, np.bool_)
        while not terminated.any():
            fleet.send(np.ones(2, np.int64))
            terminated = fleet.recv().terminated
        assert fleet.active_count == (2 if mode == "SAME_STEP" else 2 - int(terminated.sum()))


def test_the_server_has_too_few_sessions(url: str) -> None:
    with envfleet.connect(url, num_envs=SESSIONS) as fleet:
        fleet.reset()
        more = envfleet.connect(url, num_envs=1)
        with pytest.raises(SubEnvError, match=r"ServiceRefused.*CAPACITY_REACHED"):
            more.reset()
        more.close()
    with envfleet.connect(url, num_envs=SESSIONS) as fleet:  # closing a fleet frees its sessions
        fleet.reset()


def test_what_the_environment_raises_is_told(url: str) -> None:
    with envfleet.connect(url, num_envs=1) as fleet:
        fleet.reset(options={"far": True})
        with pytest.raises(SubEnvError, match=r"the cart is lost \(EXECUTION_ERROR\)"):
            fleet.step(np.ones(1, np.int64))


def test_spaces_can_be_passed(url: str) -> None:
    seen = spaces.Dict({"numbers": spaces.Box(-10, 10, (4,), np.float32)})
    acted = spaces.Dict({"direction": spaces.Discrete(2)})
    with envfleet.connect(url, num_envs=1, observation_space=seen, action_space=acted) as fleet:
        observations, _ = fleet.reset(seed=1)
        assert observations["numbers"].dtype == np.float32
        assert fleet.step({"direction": np.array([1])})[1] == [1.0]
    with (
        envfleet.connect(url, num_envs=1, observation_space=spaces.Box(-1, 1, (7,))) as fleet,
        pytest.raises(SubEnvError, match=r"\(7,\)"),
    ):
        fleet.reset()


def test_schemas_become_spaces() -> None:
    bounded = {"type": "number", "minimum": 0, "maximum": 2}
    row = {"type": "array", "minItems": 3, "maxItems": 3}
    fields = {
        "flag": {"type": "boolean"},
        "level": {"type": "integer", "minimum": -1, "maximum": 4},
        "grid": {**row, "items": {**row, "items": bounded}},
        "keys": {**row, "items": {"type": "integer", "minimum": 1, "maximum": 2}},
        "metadata": {"type": "object"},
    }
    assert _read_fields("action_space", fields, None) == (
        spaces.Dict(
            {
                "flag": spaces.Discrete(2),
                "level": spaces.Discrete(6, start=-1),
                "grid": spaces.Box(0, 2, (3, 3), np.float64),
                "keys": spaces.MultiDiscrete([2, 2, 2], start=[1, 1, 1]),
            }
        ),
        None,
    )
    with pytest.raises(InvalidArgument, match=r"'text' only .*which is no space: pass action_space="):
        _read_fields("action_space", {"text": {"type": "string"}}, None)
    with pytest.raises(InvalidArgument, match="pass a Dict of these"):
        _read_fields("action_space", fields, spaces.Discrete(2))


def test_arguments_that_openenv_does_not_take(url: str) -> None:
    for changes in ({"env": "CartPole-v1"}, {"mode": "ranked"}, {"resume": True}, {"fleet_id": "a"}):
        with pytest.raises(InvalidArgument, match="leave out env, mode, resume and fleet_id"):
            envfleet.connect(url, **changes)
    with pytest.raises(InvalidArgument, match=r"step_size=…: a server of OpenEnv"):
        envfleet.connect(url, step_size=3)
    with pytest.raises(InvalidArgument, match="num_envs=0"):
        envfleet.connect(url, num_envs=0)
    with pytest.raises(InvalidArgument, match="env=None: pass the id"):
        envfleet.connect("http://127.0.0.1:1")


def test_no_server_answers() -> None:
    with pytest.raises(ServiceUnreachable, match="/schema does not answer"):
        envfleet.connect("openenv+ws://127.0.0.1:1", num_envs=2, timeout_s=5.0)


def test_both_ends_of_envfleet_understand_each_other(place: Place) -> None:
    local = gym.make("CartPole-v1")
    spaces_of_both = (local.observation_space, "observation"), (local.action_space, "action")
    url = f"{place.url.replace('http', 'ws')}/openenv/CartPole-v1"
    env = OpenEnv(url, *spaces_of_both, place.token, 60.0)
    np.testing.assert_array_equal(env.reset(seed=3)[0], local.reset(seed=3)[0])
    np.testing.assert_array_equal(env.step(1)[0], local.step(1)[0])
    env.close()
    env.close()
    with pytest.raises(ServiceUnreachable, match="did not answer a step"):
        env.step(1)
    with pytest.raises(ServiceUnreachable, match="HTTP 403"):
        OpenEnv(url, *spaces_of_both, None, 60.0)
