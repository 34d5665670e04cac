"""Administrators manage users and attempts in a browser."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from tests.service.conftest import TURBOFAN, Caller
from tests.service.web.conftest import SIZES, check, follow, open_page, sign_in
from tests.service.web.playing import sell_at_once
from tests.waiting import PATIENCE_S

from envfleet.service.service import Service


@pytest.fixture(params=sorted(SIZES))
def page(request: pytest.FixtureRequest, browser: Browser, http: httpx.Client) -> Iterator[Page]:
    with open_page(browser, str(http.base_url), request.param) as opened:
        yield opened


def test_a_class_is_created_and_a_user_managed(page: Page, service: Service, admin: Caller) -> None:
    size = page.viewport_size
    assert size is not None
    names = [f"{name} {size['width']}" for name in ("kim", "lou")]
    sign_in(page, admin.token)
    page.goto("/admin")
    page.get_by_text("Create many users").click()
    page.get_by_label("CSV: a header").fill("\n".join(["name", *names]))
    check(page)
    follow(page.get_by_role("button", name="Create users"))
    check(page)
    created = {
        row["name"]: row["token"] for row in csv.DictReader(io.StringIO(page.locator("#new-users").inner_text()))
    }
    assert list(created) == names
    sell_at_once(Caller(admin.http, created[names[0]]))
    follow(page.get_by_role("link", name=names[0]))
    page.get_by_text("Manage this user").click()
    new_name = f"Kim {size['width']}"
    page.get_by_label("Name", exact=True).fill(new_name)
    page.get_by_label("Live environments", exact=True).fill("8")
    check(page)
    follow(page.get_by_role("button", name="Save"))
    expect(page.get_by_role("heading", level=1)).to_have_text(new_name)
    identity = service.tokens.check(created[names[0]])
    assert (identity.name, identity.max_live_envs) == (new_name, 8)
    page.get_by_text("Void an attempt").click()
    page.get_by_label("Reason").fill("copied <b>")
    check(page)
    follow(page.get_by_role("button", name="Change"))
    expect(page.get_by_text("void: copied <b>")).to_be_visible()
    assert new_name not in {row["user"] for row in service.scores.board(TURBOFAN)}
    page.get_by_text("Void an attempt").click()
    follow(page.get_by_role("button", name="Change"))
    assert new_name in {row["user"] for row in service.scores.board(TURBOFAN)}
    page.get_by_text("Manage this user").click()
    follow(page.get_by_role("button", name="Disable"))
    expect(page.get_by_text("Disabled since")).to_be_visible()
    check(page)
    page.get_by_text("Manage this user").click()
    follow(page.get_by_role("button", name="Delete for good"))
    assert page.url.endswith("/admin")
    assert new_name not in {row["name"] for row in service.accounts.rows()}


@pytest.fixture
def visit(http: httpx.Client) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=http.base_url, timeout=PATIENCE_S) as client:
        yield client


def test_forms_say_what_is_wrong_and_are_for_administrators(
    visit: httpx.Client, service: Service, ann: Caller, admin: Caller
) -> None:
    user_id = service.tokens.check(ann.token).user_id
    sell_at_once(ann)
    number = service.scores.attempts(user_id)[0]["id"]
    forms = {
        "/admin/users": {"table": "name\neve\n"},
        f"/participants/{user_id}/edit": {"name": "eve"},
        f"/participants/{user_id}/disable": {},
        f"/participants/{user_id}/enable": {},
        f"/participants/{user_id}/delete": {},
        f"/participants/{user_id}/void": {"reason": "envy", "attempt": str(number)},
    }
    visit.post("/sign-in", data={"token": ann.token})
    before = service.accounts.rows(), service.scores.all_attempts()
    for path, form in forms.items():
        assert visit.post(path, data=form).status_code == 404, path
        assert visit.post(path, data=form, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403, path
    assert visit.get("/admin/attempts.csv").status_code == 404
    assert (service.accounts.rows(), service.scores.all_attempts()) == before
    visit.post("/sign-in", data={"token": admin.token})
    for path, form, why in (
        ("/admin/users", {"table": "ann"}, "pass a header with name"),
        (f"/participants/{user_id}/edit", {"name": "root"}, "another user"),
        (f"/participants/{user_id}/edit", {"name": "ann", "max_live_envs": "few"}, "not a whole number"),
        (f"/participants/{user_id}/delete", {}, "not disabled"),
        (f"/participants/{user_id}/void", {"reason": "x" * 301, "attempt": str(number)}, "not complete"),
        (f"/participants/{user_id}/void", {"reason": "why", "attempt": "99999"}, "does not exist"),
    ):
        response = visit.post(path, data=form)
        assert (response.status_code, why in response.text) == (422, True), response.text
    again = visit.post("/admin/tokens", data={"name": "ann"}).text
    assert "this is another token for it, next to" in again
    assert visit.get("/admin/users").headers["location"] == "/admin"
    table = visit.get("/admin/attempts.csv")
    assert (table.headers["content-type"], "attempts.csv" in table.headers["content-disposition"]) == (
        "text/csv; charset=utf-8",
        True,
    )
    assert any(row["user"] == "ann" for row in csv.DictReader(io.StringIO(table.text)))


def test_scores_are_a_table_to_download(visit: httpx.Client, service: Service, ann: Caller) -> None:
    sell_at_once(ann)
    service.scores.boards.clear()  # it may be a second old
    rows = list(csv.DictReader(io.StringIO(visit.get("/scores.csv?env=Turbofan-v0").text)))
    assert "ann" in {row["user"] for row in rows}
    assert visit.get("/scores.csv?env=nowhere").status_code == 422


def test_a_disabled_user_is_told_so_at_the_door(visit: httpx.Client, service: Service, bob: Caller) -> None:
    visit.post("/sign-in", data={"token": bob.token})
    service.accounts.disable("bob")
    assert visit.get("/me").headers["location"] == "/sign-in?after=/me"
    refused = visit.post("/sign-in", data={"token": bob.token})
    assert (refused.status_code, "This user is disabled" in refused.text) == (401, True)
    answer = bob.get("/me")
    assert (answer.status_code, "user 'bob' is disabled" in answer.json()["detail"]) == (401, True)
    service.accounts.enable("bob")
    assert bob.get("/me").status_code == 200
