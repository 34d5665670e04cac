"""Competitions in a browser: reading, taking part alone and in a team, and the final scores."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from playwright.sync_api import Browser, Page, expect
from tests.service.conftest import TURBOFAN, Caller
from tests.service.serving import make_settings, serve_here
from tests.service.web.conftest import SIZES, check, follow, open_page, sign_in
from tests.service.web.playing import sell_at_once
from tests.waiting import PATIENCE_S

from envfleet.service.database.models import Competition
from envfleet.service.service import Service

DAY_S = 86_400.0
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(params=sorted(SIZES))
def page(request: pytest.FixtureRequest, browser: Browser, http: httpx.Client) -> Iterator[Page]:
    with open_page(browser, str(http.base_url), request.param) as opened:
        yield opened


def open_cup(service: Service, name: str, *, has_code: bool = False, max_team_size: int = 1) -> tuple[int, str]:
    """Create a competition that is open; returns its id and code."""
    code = service.competitions.create(
        name,
        has_code=has_code,
        env=TURBOFAN,
        opens_at=time.time() - DAY_S,
        closes_at=time.time() + DAY_S,
        text=f"Keep engines alive.\n\nNo {HOSTILE}.",
        baseline_name="Thresholds",
        baseline_score=900.0,
        max_team_size=max_team_size,
    )
    return service.competitions.find(name)["id"], code or ""


def close(service: Service, competition_id: int) -> None:
    """Let a competition close at this moment."""
    with service.store.engine.begin() as connection:
        connection.execute(
            sa.update(Competition).where(Competition.id == competition_id).values(closes_at=time.time() - 0.001)
        )
    service.scores.boards.clear()


def test_a_team_takes_part_and_reads_the_final_scores(page: Page, service: Service, admin: Caller) -> None:
    size = page.viewport_size
    assert size is not None
    cup, invitation = open_cup(service, f"Cup {size['width']}", has_code=True, max_team_size=2)
    users = {name: service.tokens.create(f"{name} {size['width']}") for name in ("ann", "bob")}
    page.goto("/competitions")
    check(page)
    follow(page.get_by_role("link", name=f"Cup {size['width']}"))
    check(page)
    expect(page.get_by_text("Keep engines alive.")).to_be_visible()
    follow(page.get_by_role("main").get_by_role("link", name="Sign in"))
    page.get_by_label("Token").fill(users["ann"])
    follow(page.get_by_role("main").get_by_role("button", name="Sign in"))
    assert page.url.endswith(f"/competitions/{cup}")
    page.get_by_label("New team").fill(HOSTILE.replace("/", ""))
    page.get_by_label("Invitation code").fill(invitation)
    follow(page.get_by_role("button", name="Take part"))
    check(page)
    code = page.locator("#new-code").inner_text()
    page.goto(f"/competitions/{cup}/join")  # as the browser's address bar has it
    assert page.url.endswith(f"/competitions/{cup}")
    assert code not in page.content()
    sign_in(page, users["bob"])
    page.goto(f"/competitions/{cup}")
    page.get_by_label("Invitation code").fill(code)
    follow(page.get_by_role("button", name="Take part"))
    expect(page.get_by_text(f"ann {size['width']}, bob {size['width']}")).to_be_visible()
    sell_at_once(Caller(admin.http, users["ann"]))
    service.scores.boards.clear()
    own_row = page.get_by_role("row").filter(has_text="you")
    expect(own_row).to_contain_text(HOSTILE)  # the page updates itself
    check(page)
    close(service, cup)
    page.goto(f"/competitions/{cup}")
    check(page)
    expect(page.get_by_role("heading", name="Final scores")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="Thresholds")).to_have_count(2)
    expect(page.get_by_role("button", name="Take part")).to_have_count(0)


@pytest.fixture
def visit(http: httpx.Client) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=http.base_url, timeout=PATIENCE_S) as client:
        yield client


def test_pages_of_competitions_guard_what_is_not_public(
    visit: httpx.Client, service: Service, ann: Caller, bob: Caller, admin: Caller
) -> None:
    cup, _ = open_cup(service, "Guarded")
    path = f"/competitions/{cup}"
    assert visit.post(f"{path}/join").headers["location"] == f"/sign-in?after={path}/join"
    visit.post("/sign-in", data={"token": ann.token})
    assert visit.post(f"{path}/join", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    refused = visit.post(f"{path}/join", data={"team": "Owls"})
    assert (refused.status_code, "This competition has no teams" in refused.text) == (422, True)
    assert visit.post(f"{path}/join").status_code == 200
    assert visit.post(f"{path}/join").status_code == 422
    assert visit.get("/competitions/99999").status_code == visit.post("/competitions/99999/join").status_code == 404
    assert visit.get(f"{path}/scores.csv").status_code == 404
    sell_at_once(ann)
    service.scores.boards.clear()
    first = visit.get(f"{path}/board")
    again = visit.get(f"{path}/board", headers={"If-None-Match": first.headers["etag"]})
    assert ("ann" in first.text, again.status_code) == (True, 304)
    assert "Final scores" not in visit.get(path).text
    visit.post("/sign-in", data={"token": admin.token})
    rows = list(csv.DictReader(io.StringIO(visit.get(f"{path}/scores.csv").text)))
    assert [row["team"] for row in rows] == ["ann"]
    assert rows[0]["final_score"] != ""


def test_competitions_that_are_not_public(tmp_path: Path) -> None:
    with serve_here(make_settings(tmp_path, has_public_scores=False)) as (http, service):
        cup, _ = open_cup(service, "Hidden")
        for path in ("/competitions", f"/competitions/{cup}", f"/competitions/{cup}/board"):
            assert http.get(path).status_code == 303
        http.post("/sign-in", data={"token": service.tokens.create("ann")})
        assert "Hidden" in http.get("/competitions").text
