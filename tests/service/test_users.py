"""Tokens, access to other users' fleets, and quotas."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from tests.service.conftest import TURBOFAN, Caller
from tests.service.serving import make_settings, serve_here
from tests.waiting import PATIENCE_S

from envfleet.errors import EnvfleetError, InvalidArgument
from envfleet.remote.codec import unpack
from envfleet.service.database.store import Store
from envfleet.service.service import Service
from envfleet.service.users.auth import Tokens


def test_tokens_are_made_rotated_and_revoked_by_an_administrator(admin: Caller, ann: Caller) -> None:
    def post(path: str, **body: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {admin.token}"}
        return admin.http.post(f"/api/v2/admin/tokens{path}", json=body, headers=headers)

    token = post("", name="dora").json()["token"]
    dora = Caller(admin.http, token)
    assert unpack(dora.get("/me").content)["user"] == "dora"
    listed = [row for row in admin.get("/admin/tokens").json()["tokens"] if row["user"] == "dora"]
    assert token not in str(listed)
    assert token.startswith(listed[0]["prefix"])
    fleet = dora.create()
    rotated = Caller(admin.http, post(f"/{listed[0]['id']}/rotate").json()["token"])
    assert dora.get("/me").status_code == 401
    assert rotated.get(f"/fleets/{fleet}").status_code == 200  # the user's, whatever the token
    newest = admin.get("/admin/tokens").json()["tokens"][-1]
    post(f"/{newest['id']}/revoke")
    refused = rotated.get("/me")
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
    assert post("/99999/revoke").status_code == 422
    for path in ("/admin/tokens",):
        assert ann.get(path).json()["code"] == "forbidden"


@pytest.fixture
def tokens(database: str) -> Iterator[Tokens]:
    store = Store(database)
    store.migrate()
    yield Tokens(store)
    store.close()


def test_the_last_administrator_is_not_revoked(tokens: Tokens) -> None:
    first, other = (tokens.check(tokens.create(name, role="admin")).token_id for name in ("root", "ann"))
    guest = tokens.check(tokens.create("guest")).token_id
    tokens.revoke(first)
    with pytest.raises(InvalidArgument, match=f"token {other} is the last of an administrator: create another"):
        tokens.revoke(other)
    tokens.revoke(first)  # it is revoked, so that nothing happens
    tokens.revoke(guest)
    other = tokens.check(tokens.rotate(other)).token_id
    assert [row["id"] for row in tokens.list() if row["revoked_at"] is None] == [other]


def test_of_two_administrators_revoked_at_once_one_stays(tokens: Tokens) -> None:
    numbers = [tokens.check(tokens.create(f"root {k}", role="admin")).token_id for k in range(6)]

    def is_revoked(number: int) -> bool:
        try:
            tokens.revoke(number)
        except InvalidArgument:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(is_revoked, numbers)) == [False] + [True] * 5


def test_rotating_revives_no_token(tokens: Tokens) -> None:
    number = tokens.check(tokens.create("ann")).token_id
    tokens.revoke(number)
    with pytest.raises(InvalidArgument, match=f"token {number} was revoked: create a new one"):
        tokens.rotate(number)
    assert len(tokens.list()) == 1


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"role": "admin"}, "participant"),
        ({"max_live_envs": 7}, "8"),
        ({"max_steps_per_day": 7}, "None"),
    ],
)
def test_a_token_changes_no_user(tokens: Tokens, changes: dict[str, Any], kept: str) -> None:
    tokens.create("ann", max_live_envs=8)
    with pytest.raises(InvalidArgument, match=rf"user 'ann' has .*{kept}.*which a new token does not change"):
        tokens.create("ann", **changes)
    assert len(tokens.list()) == 1
    again = tokens.check(tokens.create("ann", role="participant", max_live_envs=8))
    assert (again.role, again.max_live_envs) == ("participant", 8)
    assert tokens.check(tokens.create("ann")) != again


def test_calls_of_administrators_say_what_they_refuse(tmp_path: Path) -> None:
    with serve_here(make_settings(tmp_path)) as (http, service):
        root = Caller(http, service.tokens.create("root", role="admin"))
        service.tokens.create("ann")
        headers = {"Authorization": f"Bearer {root.token}"}
        for path, body, message in (
            ("/1/revoke", {}, "last of an administrator"),
            ("", {"name": "ann", "role": "admin"}, "user 'ann' has role='participant'"),
        ):
            refused = http.post(f"/api/v2/admin/tokens{path}", json=body, headers=headers)
            assert (refused.status_code, message in refused.json()["detail"]) == (422, True)
        assert http.post("/api/v2/admin/tokens", json={"name": "root"}, headers=headers).status_code == 201


def test_only_digests_of_tokens_are_kept(ann: Caller, service: Service) -> None:
    with service.store.engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT * FROM tokens")).all()
    assert ann.token not in str(rows)
    assert len(ann.token) > 32


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", "Basic abc", "Bearer " + "x" * 5000])
def test_calls_without_a_good_token(http: httpx.Client, header: str) -> None:
    for path in ("/api/v2/me", "/api/v2/fleets", "/api/v2/envs", "/api/v2/admin/tokens"):
        assert http.get(path, headers={"Authorization": header}).status_code == 401
    assert http.post("/api/v1/session/create").status_code == 401
    assert http.post("/api/v1/episode/step", json={"episode_id": "x", "action": 0}).status_code == 401


def test_what_is_anothers_looks_as_if_it_were_not_there(ann: Caller, bob: Caller) -> None:
    fleet = ann.create()
    ann.call(f"/fleets/{fleet}/reset", seq=0)
    episode = ann.json("/episode/create").json()["episode_id"]
    missing = fleet[:-4] + "0000"
    for path, body in (
        ("step", {"seq": 1, "actions": np.zeros(3, np.int64)}),
        ("reset", {"seq": 1}),
        ("close", {}),
    ):
        foreign, unknown = bob.post(f"/fleets/{fleet}/{path}", **body), bob.post(f"/fleets/{missing}/{path}", **body)
        assert (foreign.status_code, foreign.json()["code"]) == (404, "not_found")
        assert foreign.text.replace(fleet, missing) == unknown.text
    assert bob.get(f"/fleets/{fleet}").status_code == 404
    unknown_id = episode.replace(episode[:4], "0000", 1)
    for response, other in (
        (bob.episode(episode), bob.episode(unknown_id)),
        (
            bob.json("/episode/step", episode_id=episode, action=0),
            bob.json("/episode/step", episode_id=unknown_id, action=0),
        ),
        (bob.json("/episode/reset", episode_id=episode), bob.json("/episode/reset", episode_id=unknown_id)),
    ):
        assert response.status_code == 404
        assert response.text.replace(episode[:24], "") == other.text.replace(unknown_id[:24], "")
    assert ann.call(f"/fleets/{fleet}/step", seq=1, actions=np.zeros(3, np.int64))["seq"] == 2
    assert (
        ann.json("/episode/step", episode_id=fleet + "-0-0", action=0).status_code == 404
    )  # no episode of that protocol


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Service]]:
    limits = {"max_live_envs": 6, "max_steps_per_day": 20, "max_body_bytes": 4096, "queue_timeout_s": 0.3}
    settings = make_settings(tmp_path_factory.mktemp("tight"), **limits, requests_per_s=20.0, max_running=1)
    with serve_here(settings) as both:
        yield both


def test_live_environments_and_steps_are_limited(tight: tuple[httpx.Client, Service]) -> None:
    http, service = tight
    caller = Caller(http, service.tokens.create("eve"))
    fleet = caller.create(TURBOFAN, 4)
    refused = caller.post("/fleets", env=TURBOFAN, num_envs=3)
    assert (refused.status_code, refused.json()["code"]) == (403, "quota")
    assert "6 are allowed" in refused.json()["detail"]
    caller.call(f"/fleets/{fleet}/reset", seq=0, seeds=1)
    for k in range(5):
        caller.call(f"/fleets/{fleet}/step", seq=k + 1, key=b"same key", actions=np.zeros(4, np.int64))
    caller.call(f"/fleets/{fleet}/step", seq=5, key=b"same key", actions=np.zeros(4, np.int64))  # a retry costs nothing
    refused = caller.post(f"/fleets/{fleet}/step", seq=6, actions=np.zeros(4, np.int64))
    assert (refused.status_code, refused.json()["code"]) == (403, "quota")
    assert 0 < int(refused.headers["Retry-After"]) <= 86_400
    quota = unpack(caller.get("/me").content)["quota"]
    assert quota == {"live_envs": {"used": 4, "limit": 6}, "steps_today": {"used": 20, "limit": 20}}
    caller.call(f"/fleets/{fleet}/close")
    assert caller.create(TURBOFAN, 6, key=b"same key") == caller.create(TURBOFAN, 6, key=b"same key")


def test_limits_of_ones_own(tight: tuple[httpx.Client, Service]) -> None:
    http, service = tight
    caller = Caller(http, service.tokens.create("fay", max_live_envs=8))
    caller.create(TURBOFAN, 8)


def test_bodies_are_limited(tight: tuple[httpx.Client, Service]) -> None:
    http, service = tight
    caller = Caller(http, service.tokens.create("gil"))
    fleet = caller.create(TURBOFAN, 1)
    for content in (bytes(5000), (bytes(1000) for _ in range(5))):
        response = http.post(
            f"/api/v2/fleets/{fleet}/step", content=content, headers={"Authorization": f"Bearer {caller.token}"}
        )
        assert (response.status_code, response.json()["code"]) == (413, "too_large")


def test_calls_wait_for_their_turn_and_are_refused_after_a_while(
    tight: tuple[httpx.Client, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    http, service = tight
    caller = Caller(http, service.tokens.create("hal"))
    fleet = caller.create(TURBOFAN, 1)
    hosted = service.fleets.held(fleet)
    assert hosted is not None
    other = caller.create(TURBOFAN, 1)
    begun, may_end = threading.Event(), threading.Event()

    def take_long(*_: Any) -> Any:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        raise EnvfleetError("it took long")

    with monkeypatch.context() as patch:
        patch.setattr(hosted.fleet, "reset_envs", take_long)
        slow = threading.Thread(target=lambda: caller.post(f"/fleets/{fleet}/reset", seq=0))
        slow.start()
        assert begun.wait(PATIENCE_S)
        response = caller.post(f"/fleets/{other}/reset", seq=0)
        may_end.set()
        slow.join(PATIENCE_S)
    assert (response.status_code, response.json()["code"]) == (429, "busy")
    assert response.headers["Retry-After"] == "1"
    assert caller.call(f"/fleets/{other}/reset", seq=0)["seq"] == 1  # nothing had been done
    admin = service.tokens.create("root", role="admin")
    refusals = http.get("/metrics", headers={"Authorization": f"Bearer {admin}"}).text
    assert 'envfleet_refusals_total{code="busy"} 1.0' in refusals


def test_clients_that_never_close_are_made_room_for(tight: tuple[httpx.Client, Service], monkeypatch: Any) -> None:
    http, service = tight
    caller = Caller(http, service.tokens.create("ida"))
    body = {"env_config": {}, "num_envs": 4}
    first = caller.json("/vectorized/episodes/create", **body).json()["episode_ids"]
    assert caller.json("/vectorized/episodes/create", **body).status_code == 403  # it may still be used
    monkeypatch.setattr("envfleet.service.protocols.episode_calls._LEFT_ALONE_S", 0.0)
    assert caller.json("/vectorized/episodes/create", **body).status_code == 200
    assert caller.episode(first[0]).status_code == 410


def test_no_ranked_attempt_is_closed_to_make_room(tight: tuple[httpx.Client, Service], monkeypatch: Any) -> None:
    http, service = tight
    caller = Caller(http, service.tokens.create("ivy"))
    monkeypatch.setattr("envfleet.service.protocols.episode_calls._LEFT_ALONE_S", 0.0)
    ranked = {"env_config": {"ranked": True}, "num_envs": 2}
    first = caller.json("/vectorized/episodes/create", **ranked).json()["episode_ids"]
    training = {"env_config": {}, "num_envs": 4}
    for _ in range(2):
        assert caller.json("/vectorized/episodes/create", **training).status_code == 200
    assert caller.json("/episode/step", episode_id=first[0], action=0).status_code == 200
