"""The episode protocol, field by field, as a client of version 0.4 reads and sends it."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from tests.service.conftest import TURBOFAN, Caller

import envfleet
from envfleet.service.service import Service

CONFIG = {"env_type": "DegradationEnv", "max_steps_per_episode": 1000, "auto_reset": True, "step_size": 10}


def group(caller: Caller, num_envs: int = 4, *, is_seeded: bool = True, **changes: Any) -> list[str]:
    """Begin episodes: of 2,000 engines without a seed, one breaks down within its first ten flights."""
    config = {**CONFIG, **changes, "reward_config": {}}
    reply = caller.json("/vectorized/episodes/create", env_config=config, num_envs=num_envs).json()
    assert isinstance(reply["vectorized_group_id"], str)
    ids: list[str] = reply["episode_ids"]
    assert len(set(ids)) == num_envs
    if not is_seeded:
        return ids
    reply = caller.json("/episode/vectorized_reset", episode_ids=ids, seeds=[*range(1, num_envs + 1)]).json()
    seeded: list[str] = reply["new_episode_ids"]
    return seeded


def actions_of(ids: list[str], actions: list[int], **more: Any) -> list[dict[str, Any]]:
    step = {"step_size": 10, "return_all_states": True, **more}
    return [{"episode_id": each, "action": action, **step} for each, action in zip(ids, actions, strict=True)]


def step(caller: Caller, ids: list[str], actions: list[int], **more: Any) -> Any:
    response = caller.json("/episode/vectorized_step", episode_actions=actions_of(ids, actions, **more))
    assert response.status_code == 200, response.text
    return response.json()


def test_version_and_session(ann: Caller) -> None:
    assert ann.http.get("/api/v1/version").json() == {"latest_version": "0.4"}
    headers = {"User-Token": ann.token, "Content-Type": "application/json"}
    response = ann.http.post("/api/v1/session/create", headers=headers)  # no body, whatever the header says
    assert isinstance(response.json()["session_id"], str)


def test_one_episode_from_creation_to_sale(ann: Caller) -> None:
    created = ann.json("/episode/create", **CONFIG).json()
    first = created["episode_id"]
    assert np.shape(created["initial_observation"]) == (9,)
    reset = ann.json("/episode/reset", episode_id=first, seed=5).json()
    assert np.shape(reset["observation"]) == (9,)
    episode = reset["new_episode_id"]
    assert episode != first
    step = {"episode_id": episode, "step_size": 10, "return_all_states": True}
    flown = ann.json("/episode/step", **step, action=0).json()
    assert np.shape(flown["observation"]) == (10, 9)
    assert 400 < flown["reward"] < 520
    assert (flown["terminated"], flown["truncated"], flown["step"]) == (False, False, 10)
    assert flown["info"]["info"]["total_reward"] == flown["reward"]
    last = ann.json("/episode/step", **{**step, "return_all_states": False, "step_size": 3}, action=1).json()
    assert np.shape(last["observation"]) == (9,)
    assert last["step"] == 13
    sold = ann.json("/episode/step", **step, action=2).json()
    assert np.shape(sold["observation"]) == (1, 9)
    assert (sold["terminated"], sold["truncated"], sold["step"], sold["info"]["reason"]) == (True, False, 14, "sold")
    over = ann.json("/episode/step", **step, action=0)
    assert over.status_code == 409
    latest = ann.episode(f"{episode}/state/latest").json()
    assert latest["observation"] == sold["observation"][0]
    assert (latest["step"], latest["terminated"], latest["truncated"]) == (14, True, False)
    info = ann.episode(episode).json()
    assert info["total_reward"] == pytest.approx(flown["reward"] + last["reward"] + sold["reward"])
    assert set(info) == {"episode_id", "total_reward", "step", "terminated", "truncated"}  # nothing hidden


def test_engines_fly_as_they_do_locally(ann: Caller) -> None:
    ids = group(ann)
    ids = ann.json("/episode/vectorized_reset", episode_ids=ids, seeds=[9, 10, 11, 12]).json()["new_episode_ids"]
    with envfleet.make(TURBOFAN, 4, backend="kernel") as local:
        local.reset(seed=9)
        for k in range(5):
            actions = [int(k == 3), 0, 0, int(k == 1)]
            reply = step(ann, ids, actions)
            observations, rewards, *_ = local.step(np.array(actions))
            np.testing.assert_array_equal(np.array(reply["observations"], np.float32), observations)
            np.testing.assert_array_equal(reply["rewards"], rewards)


def test_some_engines_are_stepped_and_others_stand_still(ann: Caller) -> None:
    ids = group(ann, 3)
    whole = [step(ann, ids, [0, 0, 0])["rewards"] for _ in range(3)]
    ids = ann.json("/episode/vectorized_reset", episode_ids=ids, seeds=[1, 2, 3]).json()["new_episode_ids"]
    received: list[list[float]] = [[], [], []]
    for rows in ([2], [0, 1], [1, 2], [0], [0, 1, 2]):
        reply = step(ann, [ids[row] for row in rows], [0] * len(rows))
        for row, reward in zip(rows, reply["rewards"], strict=True):
            received[row].append(reward)
    assert received == [list(rewards) for rewards in zip(*whole, strict=True)]


def test_every_reply_of_a_vectorized_step(ann: Caller, bob: Caller) -> None:
    ids = group(ann)
    reply = step(ann, ids, [0, 1, 2, 0])
    assert [len(rows) for rows in reply["observations"]] == [10, 10, 1, 10]
    assert reply["terminateds"] == [False, False, True, False]
    assert reply["truncateds"] == [False] * 4
    assert [info["step"] for info in reply["infos"]] == [10, 10, 1, 10]
    assert [info["episode_id"] for info in reply["infos"]] == ids
    assert not {"degradation", "max_degradation", "repairs"} & {name for info in reply["infos"] for name in info}
    # An ended id, another user's, a duplicate, an invalid one, a bad action: none fails the others.
    foreign = group(bob, 1)[0]
    mixed = [ids[2], foreign, ids[0], ids[0], "nonsense", ids[1]]
    reply = step(ann, mixed, [0, 0, 0, 0, 0, 7])
    assert [len(rows) for rows in reply["observations"]] == [0, 0, 10, 0, 0, 0]
    assert reply["terminateds"] == [True, True, False, True, True, True]
    assert reply["rewards"][:2] == [0.0, 0.0]
    errors = [info.get("error") for info in reply["infos"]]
    assert errors[2] is None
    assert all(isinstance(errors[k], str) for k in (0, 1, 3, 4, 5))
    assert step(ann, [], []) == {name: [] for name in ("observations", "rewards", "terminateds", "truncateds", "infos")}


def test_flat_observations_and_more_flights_than_are_allowed(ann: Caller) -> None:
    ids = group(ann, 2)
    reply = step(ann, ids, [0, 0], return_all_states=False)
    assert np.shape(reply["observations"]) == (2, 9)
    assert np.shape(step(ann, ids, [0, 0], step_size=80)["observations"][0])[0] <= 50


def test_partial_resets_and_old_ids(ann: Caller, bob: Caller) -> None:
    ids = group(ann)
    step(ann, ids, [2, 2, 0, 0])
    reply = ann.json(
        "/episode/vectorized_reset", episode_ids=[ids[1], "gone", group(bob, 1)[0]], seeds=[None] * 3
    ).json()
    assert np.shape(reply["observations"][0]) == (9,)
    assert reply["observations"][1:] == [[], []]
    assert reply["new_episode_ids"][1:] == [None, None]
    assert all(isinstance(info, dict) for info in reply["infos"])
    # Clients that ignore new ids continue with the old one.
    assert step(ann, [ids[1]], [0])["terminateds"] == [False]
    assert step(ann, [reply["new_episode_ids"][0]], [0])["infos"][0]["step"] == 20
    assert step(ann, ids, [0, 0, 0, 0])["terminateds"] == [True, False, False, False]


def test_truncated_episodes_look_terminated_afterwards(ann: Caller) -> None:
    ids = group(ann, 2, max_steps_per_episode=2)
    step(ann, ids, [0, 0])
    reply = step(ann, ids, [0, 0])
    assert (reply["terminateds"], reply["truncateds"]) == ([False, False], [True, True])
    assert reply["infos"][0]["reason"] == "max_steps"
    assert ann.episode(f"{ids[0]}/state/latest").json()["truncated"] is True
    reply = step(ann, ids, [0, 0])
    assert (reply["terminateds"], reply["truncateds"]) == ([True, True], [False, False])


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/episode/step", {"episode_id": "x", "action": 0}, 404),
        ("/episode/step", {"episode_id": "0" * 24 + "-0-0", "action": 0}, 404),
        ("/episode/step", {"action": 0}, 422),
        ("/episode/reset", {"episode_id": "x"}, 404),
        ("/episode/create", {"env_type": "Chess"}, 422),
        ("/vectorized/episodes/create", {"env_config": {}, "num_envs": 0}, 422),
        ("/episode/vectorized_reset", {"episode_ids": ["x"], "seeds": [1, 2]}, 422),
    ],
)
def test_errors_have_a_detail(ann: Caller, path: str, body: dict[str, Any], status: int) -> None:
    response = ann.json(path, **body)
    assert response.status_code == status
    assert isinstance(response.json()["detail"], str)


def test_many_unknown_episodes_cost_few_queries(running: tuple[httpx.Client, Service], ann: Caller) -> None:
    queries = 0

    def count(*_: Any) -> None:
        nonlocal queries
        queries += 1

    actions = [{"episode_id": f"{number:024x}-0-0", "action": 0} for number in range(5_000)]
    engine = running[1].store.engine
    sa.event.listen(engine, "before_cursor_execute", count)
    try:
        answer = ann.json("/episode/vectorized_step", episode_actions=actions)
    finally:
        sa.event.remove(engine, "before_cursor_execute", count)
    assert answer.status_code < 500, answer.text
    assert "does not exist" in answer.text
    assert queries < 100


def test_an_unknown_action_is_refused_in_words(ann: Caller) -> None:
    ids = group(ann, 2)
    refused = ann.json("/episode/step", episode_id=ids[0], action=3)
    message = "action=3: pass one of 0 (fly), 1 (repair), 2 (sell)"
    assert (refused.status_code, refused.json()["detail"]) == (422, message)
    reply = step(ann, ids, [0, -1])
    assert ["error" in info for info in reply["infos"]] == [False, True]
    assert "action=-1" in reply["infos"][1]["error"]


@pytest.mark.usefixtures("seeded_engines")
def test_scores_of_the_original_board(ann: Caller, service: Service) -> None:
    caller = Caller(ann.http, service.tokens.create("carl"))
    address = f"/api/v1/user/{caller.token}/score?limit=100"
    assert caller.http.get(address).json() == {"metrics": {}}
    group(caller)  # not ranked, as not asked for
    ids = group(caller, 2, is_seeded=False, ranked=True)
    refused = caller.json("/episode/reset", episode_id=ids[0], seed=1)
    assert (refused.status_code, "seeds were given" in refused.text) == (422, True)
    step(caller, ids, [1, 0], step_size=1)
    reply = step(caller, ids, [2, 2])
    caller.json("/episode/reset", episode_id=ids[0])
    over = caller.json("/episode/vectorized_reset", episode_ids=ids).json()
    assert (over["observations"], over["new_episode_ids"]) == ([[], []], [None, None])
    assert "the ranked attempt is over here" in over["infos"][0]["error"]
    metrics = caller.http.get(address).json()["metrics"]
    assert metrics["total_episodes"] == 2
    assert metrics["total_maintenance"] == 1
    assert metrics["avg_steps"] == pytest.approx(2)
    assert metrics["failure_rate"] == 0.0
    assert metrics["best_reward"] == pytest.approx(reply["infos"][1]["total_reward"])
    assert metrics["total_reward"] == pytest.approx(2 * metrics["avg_reward"])
    assert metrics["last_episode_date"].endswith("+00:00")
    assert caller.http.get("/api/v1/user/nobody/score").status_code == 401


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("reset", {"rows": None, "seeds": None}),
        ("step", {"actions": np.zeros(2, np.int64)}),
    ],
)
def test_the_fleet_protocol_does_not_reach_into_episodes(ann: Caller, verb: str, body: dict[str, Any]) -> None:
    fleet = group(ann, 2)[0].partition("-")[0]
    response = ann.post(f"/fleets/{fleet}/{verb}", seq=1, **body)
    assert response.status_code == 422
    assert "belongs to the episode protocol" in response.text


def test_accepted_decisions_are_reported_beside_refused_ones(ann: Caller, service: Service) -> None:
    """Steps of two lengths are two calls of the fleet; the quota has room for one."""
    caller = Caller(ann.http, service.tokens.create("dora", max_steps_per_day=1))
    ids = group(caller, 2)
    episode_actions = [*actions_of(ids[:1], [0]), *actions_of(ids[1:], [0], step_size=20)]
    response = caller.json("/episode/vectorized_step", episode_actions=episode_actions)
    assert response.status_code == 200, response.text
    reply = response.json()
    assert 400 < reply["rewards"][0] < 520
    assert "steps" in reply["infos"][1]["error"]
    refused = caller.json("/episode/vectorized_step", episode_actions=episode_actions)
    assert (refused.status_code, refused.json()["code"]) == (403, "quota")
