"""Every page in a real browser, opened and used, on a phone in the dark and at a desk."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.service.conftest import TURBOFAN, Caller
from tests.service.web.conftest import SIZES, check, follow, open_page, sign_in
from tests.service.web.playing import play_engines, play_poles, sell_at_once

from envfleet.service.service import Service

HOSTILE = "<img src=x onerror=alert(1)>\"'><b>Eve"


@pytest.fixture(params=sorted(SIZES))
def page(request: pytest.FixtureRequest, browser: Browser, service: Service, ann: Caller) -> Iterator[Page]:
    if not service.scores.board(TURBOFAN):
        sell_at_once(ann)
        play_engines(ann, 3, num_envs=4, seeds=3)
        play_poles(ann, "CartPole-v1", 15)
        sell_at_once(Caller(ann.http, service.tokens.create(HOSTILE)))
    with open_page(browser, str(ann.http.base_url), request.param) as opened:
        yield opened


def test_the_leaderboard_changes_while_somebody_looks(page: Page, service: Service, ann: Caller) -> None:
    page.goto("/")
    check(page)
    expect(page.get_by_role("row").filter(has_text="ann")).to_be_visible()
    expect(page.get_by_role("row", name=HOSTILE)).to_be_visible()
    newcomer = f"late {page.viewport_size}"
    sell_at_once(Caller(ann.http, service.tokens.create(newcomer)))
    row = page.get_by_role("row").filter(has_text=newcomer)
    expect(row).to_have_class(re.compile("changed"))
    check(page)
    follow(page.get_by_role("link", name="CartPole-v1", exact=True))
    expect(page.get_by_text("No ranked attempt in CartPole-v1 is complete")).to_be_visible()


def test_a_participant_signs_in_looks_at_an_engine_and_signs_out(page: Page, service: Service, ann: Caller) -> None:
    page.goto("/me")
    assert page.url.endswith("/sign-in?after=/me")
    check(page)
    sign_in(page, ann.token)
    check(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("ann")
    expect(page.get_by_role("img", name=re.compile("^score: "))).to_be_visible()
    expect(page.locator(".panels path.warn").first).to_be_attached()
    used = service.store.count_live_envs(service.tokens.check(ann.token).user_id)
    expect(page.get_by_text(f"{used} of 20,000")).to_be_visible()
    follow(page.get_by_role("link", name="whole replay"))
    check(page)
    expect(page.get_by_role("img")).to_have_count(11)  # nine sensors, rewards, return
    number, user_id = int(page.url.rpartition("/")[2]), service.tokens.check(ann.token).user_id
    episode = next(row for row in service.scores.episodes(user_id) if row["id"] == number)
    expect(page.locator("dl")).to_contain_text(f"{episode['total']:,.1f}".replace("-", "−"))
    assert page.locator(".panels figure").first.locator("path.warn").count() == episode["details"]["repairs"] > 0
    expect(page.get_by_text(re.compile("^Repaired at flight"))).to_be_visible()
    page.go_back()
    follow(page.get_by_role("row").filter(has_text="CartPole").get_by_role("link").first)
    expect(page.get_by_role("img", name=re.compile(r"^observation\[3\]"))).to_be_visible()
    check(page)
    follow(page.get_by_role("button", name="Sign out"))
    page.wait_for_url(re.compile(r"/$"))
    page.goto("/me")
    assert "/sign-in" in page.url


def test_an_administrator_makes_rotates_and_revokes_tokens(page: Page, service: Service, admin: Caller) -> None:
    name = f"Mallory & <i>{page.viewport_size}"
    sign_in(page, admin.token)
    follow(page.get_by_role("link", name="Administration"))
    check(page)
    expect(page.get_by_role("row").filter(has_text=HOSTILE).first).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="Turbofan-v0")).to_contain_text(str(service.fleets.num_envs - 3))
    page.get_by_label("User", exact=True).fill(name)
    page.get_by_label("Live environments").fill("64")
    follow(page.get_by_role("button", name="Create token"))
    first = page.locator("#new-token").inner_text()
    check(page)
    identity = service.tokens.check(first)
    assert (identity.name, identity.role, identity.max_live_envs) == (name, "participant", 64)
    row = page.locator("#tokens").get_by_role("row").filter(has_text=name)
    row.get_by_text("Change").click()
    follow(row.get_by_role("button", name="Rotate"))
    expect(page.get_by_role("alert")).to_contain_text(name)
    second = page.locator("#new-token").inner_text()
    assert second != first
    assert service.tokens.check(second).user_id == identity.user_id
    expect(row.filter(has_text="revoked")).to_have_count(1)
    row.get_by_text("Change").click()
    follow(row.get_by_role("button", name="Revoke"))
    expect(row.filter(has_text="revoked")).to_have_count(2)
    assert first not in page.content()
    assert second not in page.content()
    page.goto("/admin")
    follow(page.get_by_role("link", name=name))
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    expect(page.get_by_text("No episode has ended yet.")).to_be_visible()
    check(page)


def test_a_participant_closes_a_fleet(page: Page, service: Service, ann: Caller) -> None:
    fleet = ann.create("CartPole-v1", num_envs=2)
    other = ann.create("CartPole-v1", num_envs=2)
    sign_in(page, ann.token)
    check(page)
    follow(page.get_by_role("button", name=f"Close fleet {fleet}"))
    assert page.url.endswith("/me")
    expect(page.get_by_role("button", name=f"Close fleet {fleet}")).to_have_count(0)
    assert service.store.is_closed(fleet)
    assert not service.store.is_closed(other)
    check(page)
