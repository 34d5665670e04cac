"""OpenEnv's protocol, spoken by OpenEnv's own client and by a client that errs."""

from __future__ import annotations

import base64
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.service.conftest import TURBOFAN, Caller
from tests.service.serving import make_settings, serve_here
from tests.waiting import PATIENCE_S, wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from envfleet.service.connections import PatientConnection
from envfleet.service.offers import make_offer
from envfleet.service.service import Service

ROOT = Path(__file__).parents[2]


def play(url: str, actions: list[Any]) -> subprocess.CompletedProcess[str]:
    """Play an environment by the client of `openenv-core`, in another process."""
    command = [sys.executable, "-m", "tests.service.openenv_player", url, json.dumps(actions)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def address(caller: Caller, env: str = "CartPole-v1", *, scheme: str = "http") -> str:
    return f"{scheme}://ann:{caller.token}@127.0.0.1:{caller.http.base_url.port}/openenv/{env}"


def open_fleets(service: Service, caller: Caller) -> list[Any]:
    return list(service.store.open_fleets(service.tokens.check(caller.token).user_id))


@pytest.fixture
def player(ann: Caller) -> Iterator[ClientConnection]:
    with connect(f"{address(ann, scheme='ws')}/ws") as connection:
        yield connection


def ask(player: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
    player.send(json.dumps({"type": kind, "data": data}))
    reply: dict[str, Any] = json.loads(player.recv(PATIENCE_S))
    return reply


@pytest.mark.parametrize("env", ["CartPole-v1", "envfleet/CartPole-v1"])
def test_the_client_of_openenv_plays_as_gymnasium_does(env: str, ann: Caller, service: Service) -> None:
    actions = [1, 1, 0, *[1] * 20]
    ran = play(address(ann, env), actions[:10])
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    local = gym.make("CartPole-v1")
    first, _ = local.reset(seed=3)
    np.testing.assert_allclose(report["first"]["observation"]["observation"], first, rtol=1e-6)
    assert (report["first"]["reward"], report["first"]["done"]) == (None, False)
    for action, step in zip(actions[:10], report["steps"], strict=True):
        observation, reward, terminated, truncated, _ = local.step(action)
        np.testing.assert_allclose(step["observation"]["observation"], observation, rtol=1e-5)
        assert (step["reward"], step["done"]) == (reward, terminated or truncated)
    local.close()
    assert {name: report["state"][name] for name in ("episode_id", "step_count", "env")} == {
        "episode_id": "mine",
        "step_count": 10,
        "env": env,
    }
    assert "the action is 'left', expected numbers" in report["error"]
    wait_until(lambda: not open_fleets(service, ann), "the fleet is closed")


def test_the_client_of_openenv_is_told_what_is_wrong(ann: Caller, service: Service) -> None:
    ran = play(address(ann, "Nothing-v0"), [])
    assert re.search(r"Server error: .*Nothing-v0.*\(code: VALIDATION_ERROR\)", ran.stderr)
    ran = play(address(ann).replace(ann.token, "wrong"), [])
    assert "HTTP 403" in ran.stderr


def test_episodes_end_and_must_be_reset(player: ClientConnection) -> None:
    assert "reset" in ask(player, "step", action=1)["data"]["message"]
    assert ask(player, "reset", seed=1)["type"] == "observation"
    replies: list[dict[str, Any]] = []
    while not replies or not replies[-1]["data"]["done"]:
        replies.append(ask(player, "step", action=1, metadata={}))
    assert ask(player, "state")["data"]["terminated"]
    assert not ask(player, "state")["data"]["truncated"]
    assert ask(player, "step", action=1)["type"] == "error"
    assert ask(player, "state")["data"]["step_count"] == len(replies)
    assert not ask(player, "reset", seed=1, surprise=2)["data"]["done"]
    assert [ask(player, "step", action=1) for _ in replies] == replies


def test_bad_messages_are_refused_and_change_nothing(ann: Caller, player: ClientConnection) -> None:
    ask(player, "reset", seed=2)
    bad = [
        "",
        "{",
        "[" * 20_000,
        '{"type": "mcp"}',
        '{"type": "step", "data": 3}',
        '{"type": "reset", "data": {"seed": -1}}',
    ]
    bad += [
        f'{{"type": "step", "data": {{"action": {value}}}}}'
        for value in ("1.5", "2", "[1]", "[[],[1]]", "null", "9" * 30, "{}")
    ]
    bad += ['{"type": "step", "data": {"action": 1, "more": 1}}']
    for message in bad:
        player.send(message)
        reply = json.loads(player.recv(PATIENCE_S))
        assert (reply["type"], reply["data"]["code"]) == ("error", "VALIDATION_ERROR"), message
    player.send(b"\xff")
    assert json.loads(player.recv(PATIENCE_S))["type"] == "error"
    with connect(f"{address(ann, scheme='ws')}/ws") as other:
        ask(other, "reset", seed=2)
        assert ask(other, "step", action=0) == ask(player, "step", action=0)


def test_a_large_message_ends_the_connection(player: ClientConnection) -> None:
    with pytest.raises(ConnectionClosed) as caught:
        ask(player, "reset", seed=1, more="x" * 2**16)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1009


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic ???", f"Basic {base64.b64encode(b'ann:no').decode()}"])
def test_a_token_is_required(header: str | None, ann: Caller, service: Service) -> None:
    url = f"ws://127.0.0.1:{ann.http.base_url.port}/openenv/CartPole-v1/ws"
    with pytest.raises(InvalidStatus) as caught:
        connect(url, additional_headers=None if header is None else {"Authorization": header})
    assert caught.value.response.status_code == 403
    with connect(url, additional_headers={"Authorization": f"Bearer {ann.token}"}) as player:
        assert ask(player, "reset")["type"] == "observation"


def test_a_revoked_token_ends_the_connection(player: ClientConnection, ann: Caller, service: Service) -> None:
    ask(player, "reset")
    service.tokens.revoke(service.tokens.check(ann.token).token_id)
    assert ask(player, "step", action=0)["type"] == "error"
    with pytest.raises(ConnectionClosed):
        player.recv(PATIENCE_S)


def test_a_closed_fleet_ends_the_connection(player: ClientConnection, ann: Caller, service: Service) -> None:
    ask(player, "reset")
    [row] = open_fleets(service, ann)
    assert row["config"]["kind"] == "openenv"
    ann.call(f"/fleets/{row['id']}/close")
    assert "closed" in ask(player, "step", action=0)["data"]["message"]
    with pytest.raises(ConnectionClosed):
        player.recv(PATIENCE_S)


def test_a_lost_client_frees_its_quota(tmp_path: Path) -> None:
    offers = (make_offer(TURBOFAN, backend="serial", ranked_episodes=2),)
    settings = make_settings(tmp_path, offers=offers, max_live_envs=1, max_steps_per_day=2)
    with serve_here(settings) as (http, service):
        caller = Caller(http, service.tokens.create("ann"))
        url = f"{address(caller, scheme='ws').partition('/openenv')[0]}/ws"  # of the only environment
        with connect(url) as first:
            assert ask(first, "reset")["type"] == "observation"
            with connect(url) as second:
                assert ask(second, "reset")["data"]["code"] == "CAPACITY_REACHED"
                with pytest.raises(ConnectionClosed):
                    second.recv(PATIENCE_S)
            kinds = [ask(first, "step", action=0)["type"] for _ in range(3)]
            assert kinds == ["observation", "observation", "error"]
            first.socket.close()
        wait_until(lambda: not open_fleets(service, caller), "the fleet is closed")
        with connect(url) as third:
            assert ask(third, "reset")["type"] == "observation"
        text = service.metrics.text().decode()
        assert 'route="/ws",status="403"' in text
        assert 'envfleet_refusals_total{code="quota"} 2.0' in text


def test_several_environments_need_a_name(ann: Caller) -> None:
    with connect(f"{address(ann, scheme='ws').partition('/openenv')[0]}/ws") as player:
        assert "/openenv/CartPole-v1" in ask(player, "reset")["data"]["message"]


def test_a_quiet_connection_stays_open(ann: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PatientConnection, "head_s", 0.2)
    with connect(f"{address(ann, scheme='ws')}/ws") as quiet:
        ask(quiet, "reset")
        with socket.create_connection(("127.0.0.1", ann.http.base_url.port or 0), PATIENCE_S) as silent:
            assert silent.recv(1) == b""  # the service ends it, as it sends no request in time
        assert ask(quiet, "state")["type"] == "state"
