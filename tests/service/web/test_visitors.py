"""Access: sessions, forms of other sites, other users' episodes, hostile names."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from tests.service.conftest import Caller
from tests.service.serving import make_settings, serve_here
from tests.service.web.playing import sell_at_once
from tests.waiting import PATIENCE_S

from envfleet.errors import InvalidArgument
from envfleet.service.database.models import WebSession
from envfleet.service.offers import make_offer
from envfleet.service.service import Service

COOKIE = "envfleet_session"


@pytest.fixture
def visit(http: httpx.Client) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=http.base_url, timeout=PATIENCE_S) as client:
        yield client


def sign_in(visit: httpx.Client, token: str, **more: Any) -> httpx.Response:
    return visit.post("/sign-in", data={"token": token}, **more)


def test_a_session_is_a_cookie_of_which_only_a_digest_is_kept(
    visit: httpx.Client, service: Service, ann: Caller
) -> None:
    response = sign_in(visit, ann.token)
    assert (response.status_code, response.headers["location"]) == (303, "/me")
    cookie = response.headers["set-cookie"]
    assert {"HttpOnly", "Path=/", "SameSite=strict"} < set(cookie.split("; "))
    session_id = visit.cookies[COOKIE]
    assert ann.token not in cookie
    page = visit.get("/me")
    assert "<h1" in page.text
    assert page.headers["cache-control"] == "no-store"
    with service.store.engine.connect() as connection:
        rows = str(connection.execute(sa.select(WebSession.__table__)).all())
    for text in (rows, page.text):
        assert session_id not in text
        assert ann.token not in text
    out = visit.post("/sign-out")
    assert out.status_code == 303
    visit.cookies.set(COOKIE, session_id)
    assert visit.get("/me").headers["location"] == "/sign-in?after=/me"


def test_a_session_ends_with_its_token_and_with_time(visit: httpx.Client, service: Service, ann: Caller) -> None:
    sign_in(visit, ann.token)
    with service.store.engine.begin() as connection:
        connection.execute(sa.update(WebSession).values(expires_at=1.0))
    assert visit.get("/me").status_code == 303
    sign_in(visit, ann.token)
    assert visit.get("/me").status_code == 200
    service.tokens.revoke(service.tokens.check(ann.token).token_id)
    assert visit.get("/me").status_code == 303


@pytest.mark.parametrize("token", ["", "wrong", "ef_" + "x" * 32, "'; DROP TABLE users; --", "é\x00"])
def test_tokens_that_are_not_known(visit: httpx.Client, token: str) -> None:
    response = sign_in(visit, token)
    assert response.status_code == 401
    assert "not known" in response.text
    assert COOKIE not in visit.cookies


@pytest.mark.parametrize("after", ["//elsewhere.example", "https://elsewhere.example", "/\\elsewhere", "/api/v2/me"])
def test_signing_in_leads_to_our_pages_only(visit: httpx.Client, ann: Caller, after: str) -> None:
    response = visit.post("/sign-in", data={"token": ann.token, "after": after})
    assert response.headers["location"] == "/me"


def test_forms_of_other_sites_are_refused(visit: httpx.Client, service: Service, admin: Caller) -> None:
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://elsewhere.example"}, {"Origin": "null"}):
        assert sign_in(visit, admin.token, headers=headers).status_code == 403
    host = f"http://{visit.base_url.host}:{visit.base_url.port}"
    assert sign_in(visit, admin.token, headers={"Origin": host}).status_code == 303
    before = service.tokens.list()
    number = before[-1]["id"]
    for path in ("/admin/tokens", f"/admin/tokens/{number}/revoke", f"/admin/tokens/{number}/rotate", "/sign-out"):
        for headers in ({"Sec-Fetch-Site": "same-site"}, {"Origin": "http://elsewhere.example"}, {"Origin": "null"}):
            assert visit.post(path, data={"name": "zed"}, headers=headers).status_code == 403
    assert service.tokens.list() == before
    assert visit.get("/admin").status_code == 200


def test_a_fleet_is_closed_by_its_user_or_an_administrator(
    visit: httpx.Client, service: Service, ann: Caller, bob: Caller, admin: Caller
) -> None:
    fleets = [ann.create("CartPole-v1", num_envs=1) for _ in range(2)]
    user_id = service.tokens.check(ann.token).user_id
    sign_in(visit, bob.token)
    assert visit.post(f"/fleets/{fleets[0]}/close", data={"user_id": user_id}).status_code == 404
    sign_in(visit, ann.token)
    assert visit.post(f"/fleets/{fleets[0]}/close", data={"user_id": 1}).headers["location"] == "/me"
    sign_in(visit, admin.token)
    closed = visit.post(f"/fleets/{fleets[1]}/close", data={"user_id": user_id})
    assert closed.headers["location"] == f"/participants/{user_id}"
    assert all(service.store.is_closed(fleet) for fleet in fleets)
    assert visit.post("/fleets/x/close", data={"user_id": user_id}).status_code == 404


def test_a_mistyped_address_is_a_page_in_a_browser(visit: httpx.Client, ann: Caller) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path in ("/leaderbord", "/me/", "/admin/tokens/x/y", "/static/none.css"):
        page = visit.get(path, headers=browser)
        assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "This page does not exist." in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert visit.get(path).json()["code"] == "not_found"
    assert "text/html" in visit.get("/sign-out", headers=browser).headers["content-type"]  # which takes forms only
    assert visit.get("/api/v2/nothing", headers=browser).json()["code"] == "not_found"


def test_a_form_that_cannot_be_done_says_why(visit: httpx.Client, admin: Caller, service: Service) -> None:
    sign_in(visit, admin.token)
    for form, why in (
        ({"name": "a/b"}, "without slashes"),
        ({"name": ""}, "1 to 100 characters"),
        ({"name": "ok", "max_live_envs": "-3"}, "not a whole number"),
        ({"name": "ok", "max_steps_per_day": "²"}, "not a whole number"),
        ({"name": "ok", "role": "king"}, "not complete"),
    ):
        response = visit.post("/admin/tokens", data=form)
        assert (response.status_code, why in response.text) == (422, True), response.text
    gone = service.tokens.check(service.tokens.create("short-lived")).token_id
    service.tokens.revoke(gone)
    assert visit.post(f"/admin/tokens/{gone}/rotate").status_code == 422
    assert visit.post("/admin/tokens/99999/revoke").status_code == 422
    assert visit.get("/admin/tokens").headers["location"] == "/admin"


def test_what_is_anothers_looks_as_if_it_were_not_there(
    visit: httpx.Client, service: Service, ann: Caller, bob: Caller, admin: Caller
) -> None:
    sell_at_once(ann)
    user_id = service.tokens.check(ann.token).user_id
    number = service.scores.episodes(user_id)[0]["id"]
    sign_in(visit, ann.token)
    assert visit.get(f"/episodes/{number}").status_code == 200
    sign_in(visit, bob.token)
    unknown = visit.get("/episodes/2000000000")
    for path in (f"/episodes/{number}", f"/participants/{user_id}", "/participants/2000000000", "/admin"):
        refused = visit.get(path)
        assert (refused.status_code, refused.text) == (404, unknown.text)
    assert visit.post("/admin/tokens", data={"name": "zed"}).status_code == 404
    sign_in(visit, admin.token)
    assert visit.get(f"/episodes/{number}").status_code == 200
    assert "ann" in visit.get(f"/participants/{user_id}").text
    for path in ("/episodes/0", "/episodes/x", "/me?before=-1", "/?env=nowhere"):
        assert visit.get(path).status_code == 422


class Tags(HTMLParser):
    """Collects what a browser would make elements and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.pairs += [(tag, name) for name, _ in attrs] or [(tag, "")]


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)",
        "\"><img src=x onerror='alert(1)'>",
        "' autofocus onfocus=alert(1) x='",
        "{{ 7*7 }}",
    ],
)
def test_names_are_texts(visit: httpx.Client, service: Service, admin: Caller, name: str) -> None:
    hostile = Caller(admin.http, service.tokens.create(name))
    sell_at_once(hostile)
    user_id = service.tokens.check(hostile.token).user_id
    episode = service.scores.episodes(user_id)[0]["id"]
    sign_in(visit, admin.token)
    for path in ("/", "/board", "/admin", f"/participants/{user_id}", f"/episodes/{episode}"):
        page = visit.get(path)
        assert page.status_code == 200
        tags = Tags()
        tags.feed(page.text)
        assert not [pair for pair in tags.pairs if pair[1].startswith("on") or pair == ("img", "onerror")]
        assert sum(tag == "script" for tag, _ in tags.pairs) == (2 if path == "/" else 0)  # src and defer, of one
        assert ">49<" not in page.text


@pytest.mark.parametrize("name", ["\u202eabc", "Ann\u200b", "Ann ", " ", "a/b", ""])
def test_names_that_look_like_others_are_refused(service: Service, name: str) -> None:
    with pytest.raises(InvalidArgument, match="characters that can be seen, without slashes"):
        service.tokens.create(name)


def test_headers_of_every_page(visit: httpx.Client, admin: Caller) -> None:
    sign_in(visit, admin.token)
    for path in ("/", "/board", "/sign-in", "/me", "/admin", "/episodes/2000000000"):
        page = visit.get(path)
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "same-origin"
        assert "style=" not in page.text
    for path in ("/static/style.css", "/static/live.js", "/static/icon.svg"):
        assert visit.get(path).status_code == 200
    assert visit.get("/static/../app.py").status_code == 404


def test_the_board_is_sent_only_when_it_has_changed(visit: httpx.Client, ann: Caller) -> None:
    first = visit.get("/board")
    again = visit.get("/board", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_page_states_the_rule_of_attempts(visit: httpx.Client, tmp_path: Path) -> None:
    assert "counts what it earned, less 150;" in visit.get("/").text
    assert "There are no ranked attempts in this environment here." in visit.get("/?env=CartPole-v1").text
    offers = (make_offer("CartPole-v1", backend="serial", abandon_penalty=0.0),)
    with serve_here(make_settings(tmp_path, offers=offers)) as (http, service):
        assert "counts what it earned;" in http.get("/").text
        Caller(http, service.tokens.create("ann")).create("CartPole-v1", mode="ranked")


def test_a_leaderboard_that_is_not_public(tmp_path: Path) -> None:
    with serve_here(make_settings(tmp_path, has_public_scores=False)) as (http, service):
        for path in ("/", "/board"):
            assert http.get(path).status_code == 303
        assert http.get("/api/v2/scores/Turbofan-v0").status_code == 401
        token = service.tokens.create("ann")
        scores = http.get("/api/v2/scores/Turbofan-v0", headers={"Authorization": f"Bearer {token}"})
        assert scores.json()["scores"] == []
        sign_in(http, token)
        assert http.get("/").status_code == 200


def test_older_episodes_are_on_further_pages(visit: httpx.Client, service: Service) -> None:
    many = Caller(visit, service.tokens.create("many"))
    fleet = many.create(num_envs=30)
    many.call(f"/fleets/{fleet}/reset", seq=0)
    many.call(f"/fleets/{fleet}/step", seq=1, actions=np.full(30, 2))
    sign_in(visit, many.token)
    first = visit.get("/me").text
    assert first.count('href="/episodes/') == 26  # 25, and the last engine's
    older = visit.get("/me" + first.partition('<a href="?')[2].partition('"')[0].join(("?", ""))).text
    assert older.count('href="/episodes/') == 5
