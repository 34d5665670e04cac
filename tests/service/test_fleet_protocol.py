"""The fleet protocol: the same trajectories as here, each call made once, and refusals that name what is wrong."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.service.conftest import TURBOFAN, Caller

import envfleet
from envfleet.errors import EnvfleetError
from envfleet.remote.codec import infos_from_plain, space_from_plain, unpack


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
@pytest.mark.parametrize(("env", "steps"), [(TURBOFAN, 30), ("CartPole-v1", 60)])
def test_trajectories_are_those_of_a_local_fleet(ann: Caller, env: str, steps: int, mode: Any) -> None:
    rng = np.random.default_rng(0)
    described = ann.call("/fleets", env=env, num_envs=4, autoreset_mode=mode)
    fleet = described["fleet"]
    with envfleet.make(
        env, 4, backend="auto" if env == TURBOFAN else "serial", autoreset_mode=AutoresetMode[mode]
    ) as local:
        assert space_from_plain(described["observation_space"]) == local.single_observation_space
        assert space_from_plain(described["action_space"]) == local.single_action_space
        reply = ann.call(f"/fleets/{fleet}/reset", seq=0, seeds=7)
        np.testing.assert_array_equal(reply["observations"], local.reset(seed=7)[0])
        for k in range(steps):
            actions = rng.integers(0, local.single_action_space.n, 4)  # type: ignore[attr-defined]
            reply = ann.call(f"/fleets/{fleet}/step", seq=k + 1, actions=actions)
            observations, rewards, terminated, truncated, infos = local.step(actions)
            np.testing.assert_array_equal(reply["observations"], observations)
            assert reply["observations"].dtype == observations.dtype
            np.testing.assert_array_equal(reply["rewards"], rewards)
            np.testing.assert_array_equal(reply["terminated"], terminated)
            np.testing.assert_array_equal(reply["truncated"], truncated)
            actual_infos = infos_from_plain(reply["infos"], 4)
            assert set(actual_infos) == set(infos)
            if "episode" in infos:
                np.testing.assert_array_equal(actual_infos["episode"]["r"], infos["episode"]["r"])
        described = unpack(ann.get(f"/fleets/{fleet}").content)
        np.testing.assert_array_equal(described["episode_ids"], local.episode_ids)
        np.testing.assert_array_equal(described["ended"], local.terminated_indices)
        np.testing.assert_allclose(described["lengths"][~np.isin(range(4), described["ended"])] >= 0, True)


def test_a_call_that_is_repeated_is_made_once(ann: Caller) -> None:
    fleet = ann.create()
    ann.call(f"/fleets/{fleet}/reset", seq=0, seeds=1)
    step = {"seq": 1, "key": b"01234567", "actions": np.zeros(3, np.int64)}
    first = ann.post(f"/fleets/{fleet}/step", **step)
    again = ann.post(f"/fleets/{fleet}/step", **step)
    assert again.content == first.content
    assert again.headers["Envfleet-Replayed"] == "1"
    assert "Envfleet-Replayed" not in first.headers
    assert unpack(ann.get(f"/fleets/{fleet}").content)["seq"] == 2
    other = ann.post(f"/fleets/{fleet}/step", **{**step, "key": b"76543210"})
    assert (other.status_code, other.json()["code"], other.json()["seq"]) == (409, "out_of_step", 2)
    ahead = ann.post(f"/fleets/{fleet}/step", **{**step, "seq": 9})
    assert (ahead.status_code, ahead.json()["seq"]) == (409, 2)


def test_a_creation_that_is_repeated_makes_one_fleet(ann: Caller, bob: Caller) -> None:
    ids = {ann.create(key=b"the same") for _ in range(2)}
    assert len(ids) == 1
    assert bob.create(key=b"the same") not in ids


def test_some_rows_are_reset(ann: Caller) -> None:
    fleet = ann.create("CartPole-v1", 4, autoreset_mode="DISABLED")
    ann.call(f"/fleets/{fleet}/reset", seq=0, seeds=[1, None, 3, 4])
    seq, ended = 1, np.zeros(4, np.bool_)
    while not ended.any():
        reply = ann.call(f"/fleets/{fleet}/step", seq=seq, actions=np.array([1, 0, 1, 0]))
        seq, ended = reply["seq"], reply["terminated"]
    refused = ann.post(f"/fleets/{fleet}/step", seq=seq, actions=np.zeros(4, np.int64))
    assert (refused.status_code, refused.json()["code"]) == (409, "reset_needed")
    rows = np.flatnonzero(ended)
    assert unpack(ann.get(f"/fleets/{fleet}").content)["ended"].tolist() == rows.tolist()
    reply = ann.call(f"/fleets/{fleet}/reset", seq=seq, rows=rows, seeds=10)
    with envfleet.make("CartPole-v1", 4, backend="serial") as local:
        expected = local.reset(seed=10)[0][rows]
    np.testing.assert_array_equal(reply["observations"], expected)
    assert ann.call(f"/fleets/{fleet}/step", seq=seq + 1, actions=np.zeros(4, np.int64))["seq"] == seq + 2


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("step", {"seq": 0, "actions": np.zeros(3, np.int64)}, 409, "reset_needed"),
        ("reset", {"seq": 0, "seeds": -1}, 422, "invalid_argument"),
        ("reset", {"seq": 0, "seeds": [1]}, 422, "invalid_argument"),
        ("reset", {"seq": 0, "rows": [0]}, 409, "reset_needed"),
        ("reset", {"seq": "0"}, 422, "invalid_argument"),
        ("reset", {"seq": 0, "key": b"short"}, 422, "invalid_argument"),
    ],
)
def test_what_cannot_be_done_is_refused(ann: Caller, path: str, body: dict[str, Any], status: int, code: str) -> None:
    response = ann.post(f"/fleets/{ann.create()}/{path}", **body)
    assert (response.status_code, response.json()["code"]) == (status, code), response.text


@pytest.mark.parametrize(
    "actions",
    [np.zeros(2, np.int64), np.full(3, 3), "abc", None, {"a": 1}, [[0], [1, 2], [3]], np.zeros(3), [None] * 3],
)
def test_actions_that_are_none_change_nothing(ann: Caller, actions: Any) -> None:
    fleet = ann.create()
    ann.call(f"/fleets/{fleet}/reset", seq=0)
    response = ann.post(f"/fleets/{fleet}/step", seq=1, actions=actions)
    assert (response.status_code, response.json()["code"]) == (422, "invalid_argument"), response.text
    assert ann.call(f"/fleets/{fleet}/step", seq=1, actions=np.zeros(3, np.int64))["seq"] == 2


@pytest.mark.parametrize(
    "body",
    [
        {"env": "Walker2d-v5", "num_envs": 1},
        {"env": TURBOFAN, "num_envs": 0},
        {"env": TURBOFAN, "num_envs": 10**6},
        {"env": TURBOFAN, "num_envs": 1, "options": {"reveal": True}},
        {"env": TURBOFAN, "num_envs": 1, "options": {"step_size": 51}},
        {"env": TURBOFAN, "num_envs": 1, "options": {"step_size": 2.5}},
        {"env": TURBOFAN, "num_envs": 1, "options": {"kernel": "os:system"}},
        {"env": TURBOFAN, "num_envs": 1, "autoreset_mode": "SOMETIMES"},
    ],
)
def test_fleets_that_are_not_offered(ann: Caller, body: dict[str, Any]) -> None:
    response = ann.post("/fleets", **body)
    assert (response.status_code, response.json()["code"]) == (422, "invalid_argument"), response.text


def test_nothing_hidden_is_told(ann: Caller) -> None:
    fleet = ann.create(autoreset_mode="SAME_STEP")
    ann.call(f"/fleets/{fleet}/reset", seq=0)
    reply = ann.call(f"/fleets/{fleet}/step", seq=1, actions=np.array([0, 1, 2]))
    names = {name.removeprefix("_") for name in reply["infos"]}
    assert names <= {"num_rows", "reason", "final_obs", "final_info", "episode"}
    assert {name.removeprefix("_") for name in reply["infos"]["final_info"]} == {"num_rows", "reason"}


def test_closed_fleets_are_gone(ann: Caller) -> None:
    fleet = ann.create()
    assert fleet in [each["fleet"] for each in unpack(ann.get("/fleets").content)["fleets"]]
    for _ in range(2):
        assert ann.call(f"/fleets/{fleet}/close") == {}
    response = ann.post(f"/fleets/{fleet}/reset", seq=0)
    assert (response.status_code, response.json()["code"]) == (410, "closed")
    assert fleet not in [each["fleet"] for each in unpack(ann.get("/fleets").content)["fleets"]]


def test_an_environment_that_raises_leaves_the_fleet_as_it_was(
    ann: Caller, service: Any, monkeypatch: Any, logged: io.StringIO
) -> None:
    fleet = ann.create()
    ann.call(f"/fleets/{fleet}/reset", seq=0, seeds=1)
    hosted = service.fleets.held(fleet)

    def fail(_: Any) -> None:
        raise EnvfleetError("the engine has left the aircraft")

    monkeypatch.setattr(hosted.fleet, "step", fail)
    response = ann.post(f"/fleets/{fleet}/step", seq=1, actions=np.zeros(3, np.int64))
    assert (response.status_code, response.json()["code"]) == (500, "env_failed")
    assert "aircraft" not in response.text  # an environment may be hidden, and so is what it says
    assert "aircraft" in logged.getvalue()
    assert ann.call(f"/fleets/{fleet}/step", seq=1, actions=np.zeros(3, np.int64))["seq"] == 2
