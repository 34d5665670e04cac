"""Competitions: what counts, the two scoreboards, teams and invitation codes."""

from __future__ import annotations

import csv
import io
import itertools
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from tests.service.serving import make_settings
from tests.service.test_fleets import CARTPOLE, Process, process
from tests.service.test_operations import panel_text
from typer.testing import CliRunner, Result

from envfleet.cli.app import app
from envfleet.errors import InvalidArgument
from envfleet.service.database.models import Attempt, Member, Team
from envfleet.service.offers import make_offer
from envfleet.service.refusals import NotFound
from envfleet.service.users.accounts import Accounts
from envfleet.service.users.competitions import Competitions

NOW = 1_000_000.0
OPENS, CLOSES = NOW - 100.0, NOW + 100.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [NOW]
    fake = types.SimpleNamespace(time=lambda: now[0], monotonic=time.monotonic)
    for module in ("users.competitions", "database.scores"):
        monkeypatch.setattr(f"envfleet.service.{module}.time", fake)
    return now


@pytest.fixture
def here(database: str, tmp_path: Path) -> Iterator[Process]:
    with process(make_settings(tmp_path, database=database)) as opened:
        yield opened


@pytest.fixture
def competitions(here: Process) -> Competitions:
    return Competitions(here.store, here.scores.boards)


def create(competitions: Competitions, name: str = "Cup", **values: Any) -> dict[str, Any]:
    competitions.create(name, **{"env": CARTPOLE, "opens_at": OPENS, "closes_at": CLOSES, **values})
    return competitions.find(name)


_numbers = itertools.count()


def attempt(
    here: Process,
    user: str,
    public: float | None,
    final: float | None,
    begin: float = NOW - 50.0,
    end: float | None = NOW - 10.0,
    **more: Any,
) -> None:
    score = None if public is None or final is None else (public + final) / 2
    row = {
        "fleet_id": f"f{next(_numbers)}",
        "user_id": here.tokens.check(here.tokens.create(user)).user_id,
        "env": CARTPOLE,
        "episodes": 100,
        "started_at": begin,
        "ended_at": end,
        "score": score,
        "public_score": public,
        "final_score": final,
        **more,
    }
    with here.store.engine.begin() as connection:
        connection.execute(sa.insert(Attempt).values(**row))


def number(here: Process, user: str) -> int:
    return here.tokens.check(here.tokens.create(user)).user_id


def shown(rows: list[dict[str, Any]] | None) -> list[tuple[Any, str, float]]:
    assert rows is not None
    return [(row["rank"], row["user"], row["score"]) for row in rows]


def test_attempts_count_inside_the_time_only(here: Process, competitions: Competitions, clock: list[float]) -> None:
    cup = create(competitions)
    for user in ("ann", "bob", "guest"):
        if user != "guest":
            competitions.join(cup, number(here, user))
        attempt(here, user, 10.0, 20.0)
    attempt(here, "ann", 99.0, 99.0, begin=OPENS - 1.0)
    attempt(here, "ann", 98.0, 98.0, end=CLOSES + 1.0)
    attempt(here, "ann", None, None, end=None)
    attempt(here, "ann", 97.0, 97.0, env="elsewhere")
    attempt(here, "ann", 96.0, 96.0, void_reason="copied")
    attempt(here, "ann", 11.0, 12.0, begin=OPENS, end=CLOSES)
    assert shown(competitions.public_board(cup)) == [(1, "ann", 11.0), (2, "bob", 10.0)]
    assert competitions.final_board(cup) is None
    clock[0] = CLOSES
    assert competitions.final_board(cup) is None
    clock[0] = CLOSES + 0.1
    assert shown(competitions.final_board(cup)) == [(1, "bob", 20.0), (2, "ann", 12.0)]


def test_the_final_score_is_of_the_best_public_attempt(
    here: Process, competitions: Competitions, clock: list[float]
) -> None:
    """A maximum over many attempts by luck gains nothing: the deciding episodes are others."""
    rng = np.random.default_rng(0)
    cup = create(competitions)
    for user, count in (("picker", 200), ("honest", 1)):
        competitions.join(cup, number(here, user))
        for _ in range(count):
            public, final = rng.standard_normal(2)
            attempt(here, user, float(public), float(final))
    assert competitions.public_board(cup)[0]["user"] == "picker"
    assert competitions.public_board(cup)[0]["score"] > 2.0
    clock[0] = CLOSES + 1.0
    final = {row["user"]: row["score"] for row in competitions.final_board(cup) or ()}
    attempts = [row for row in here.scores.all_attempts() if row["user"] == "picker"]
    assert final["picker"] == max(attempts, key=lambda row: row["public_score"])["final_score"]
    assert final["picker"] < max(row["final_score"] for row in attempts)


def test_the_leaderboard_of_the_environment_does_not_reveal_it(
    here: Process, competitions: Competitions, clock: list[float]
) -> None:
    cup = create(competitions)
    competitions.join(cup, number(here, "ann"))
    attempt(here, "ann", 5.0, 7.0, begin=OPENS - 20.0)  # before it
    attempt(here, "ann", 50.0, 70.0)
    attempt(here, "bob", 50.0, 70.0)  # not a member
    assert shown(here.scores.board(CARTPOLE)) == [(1, "bob", 60.0), (2, "ann", 6.0)]
    clock[0] = CLOSES + 1.0
    assert shown(here.scores.board(CARTPOLE)) == [(1, "ann", 60.0), (1, "bob", 60.0)]


def test_the_baseline_is_a_row_without_a_rank(here: Process, competitions: Competitions) -> None:
    cup = create(competitions, baseline_name="Thresholds", baseline_score=10.0)
    assert shown(competitions.public_board(cup)) == [(None, "Thresholds", 10.0)]
    for user, score in (("ann", 10.0), ("bob", 9.0), ("eve", 10.0)):
        competitions.join(cup, number(here, user))
        attempt(here, user, score, 0.0)
    rows = shown(competitions.public_board(cup))
    assert rows == [(1, "ann", 10.0), (1, "eve", 10.0), (None, "Thresholds", 10.0), (3, "bob", 9.0)]


def test_a_team_is_one_row_with_its_best_attempt(here: Process, competitions: Competitions) -> None:
    cup = create(competitions, max_team_size=2)
    ann, bob, eve = (number(here, user) for user in ("ann", "bob", "eve"))
    code = competitions.join(cup, ann, team=" Owls ")
    assert code is not None
    attempt(here, "ann", 3.0, 1.0)
    attempt(here, "bob", 4.0, 2.0)
    attempt(here, "eve", 3.5, 2.0)
    assert competitions.join(cup, eve) is None
    assert shown(competitions.public_board(cup)) == [(1, "eve", 3.5), (2, "Owls", 3.0)]
    assert competitions.join(cup, bob, code=code) is None
    assert shown(competitions.public_board(cup)) == [(1, "Owls", 4.0), (2, "eve", 3.5)]
    team = competitions.team_of(cup["id"], bob)
    assert team is not None
    assert (team["name"], team["members"]) == ("Owls", ["ann", "bob"])
    assert competitions.team_of(cup["id"], number(here, "joe")) is None
    Accounts(here.store, here.tokens).edit("eve", new_name="Eve")  # alone, so shown by the new name
    here.scores.boards.clear()
    assert [row["user"] for row in competitions.public_board(cup)] == ["Owls", "Eve"]
    rows = competitions.scores(cup)
    assert [(row["team"], row["members"], row["attempts"]) for row in rows] == [
        ("Eve", "Eve", 1),
        ("Owls", "ann; bob", 2),
    ]
    for user, options, message in (
        ("joe", {"code": code}, "the team is full: it has 2 members"),
        ("joe", {"code": "join_wrong"}, "invitation code is not known"),
        ("joe", {"code": code, "team": "Foxes"}, "the code is a team's"),
        ("joe", {"team": "Owls"}, "another team has this name"),
        ("joe", {"team": "ann"}, "is a user's name"),
        ("joe", {"team": "a/b"}, "without slashes"),
        ("joe", {"team": "ann\u200b"}, "that can be seen"),
        ("joe", {"team": "\u202efirst"}, "that can be seen"),
        ("Eve", {}, "you take part already"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            competitions.join(cup, number(here, user), **options)
    assert here.count(Team.__table__) == 2  # nothing is left of what was refused
    assert here.count(Member.__table__) == 3


def test_of_many_who_join_at_once_no_more_than_fit_do(here: Process, competitions: Competitions) -> None:
    cup = create(competitions, max_team_size=3)
    users = [number(here, f"user {k}") for k in range(8)]
    code = competitions.join(cup, users[0], team="Owls")
    assert code is not None

    def joins(user_id: int) -> bool:
        try:
            competitions.join(cup, user_id, code=code)
        except InvalidArgument:
            return False
        return True

    with ThreadPoolExecutor(7) as pool:
        assert sum(pool.map(joins, users[1:])) == 2


def test_an_invitation_code_is_needed_where_there_is_one(
    here: Process, competitions: Competitions, clock: list[float]
) -> None:
    values = {"env": CARTPOLE, "opens_at": OPENS, "closes_at": CLOSES}
    code = competitions.create("Cup", has_code=True, max_team_size=2, **values)
    other = competitions.create("Other", has_code=True, **values)
    assert code is not None
    assert other is not None
    assert code not in str(competitions.rows())
    cup = competitions.find("Cup")
    ann, bob, eve = (number(here, user) for user in ("ann", "bob", "eve"))
    with pytest.raises(InvalidArgument, match="needs an invitation code"):
        competitions.join(cup, ann, team="Owls")
    with pytest.raises(InvalidArgument, match="not known"):
        competitions.join(cup, ann, code=other)
    owls = competitions.join(cup, ann, code=f" {code}\n", team="Owls")
    assert owls is not None
    competitions.join(cup, bob, code=owls)  # whom a member has invited
    new = competitions.invite("Cup")
    cup = competitions.get(cup["id"])
    with pytest.raises(InvalidArgument, match="not known"):
        competitions.join(cup, eve, code=code)
    competitions.join(cup, eve, code=new)
    with pytest.raises(InvalidArgument, match="this competition has no teams"):
        competitions.join(competitions.find("Other"), ann, code=other, team="Owls")
    clock[0] = CLOSES
    with pytest.raises(InvalidArgument, match="has closed"):
        competitions.join(cup, number(here, "late"), code=new)


def test_competitions_are_edited_until_they_close(competitions: Competitions, clock: list[float]) -> None:
    create(competitions)
    competitions.edit("Cup", text="Mind the gap.", closes_at=CLOSES + 50.0)
    assert (competitions.find("Cup")["text"], competitions.find("Cup")["closes_at"]) == ("Mind the gap.", CLOSES + 50.0)
    for changes, message in (
        ({}, "nothing to change"),
        ({"closes_at": OPENS}, "closes before it opens"),
        ({"closes_at": float("nan")}, "closes before it opens"),
        ({"max_team_size": 0}, "max_team_size=0: pass 1 to 100"),
        ({"baseline_name": "x"}, "baseline=x=None: pass a name and a number"),
        ({"baseline_name": "x", "baseline_score": float("inf")}, "baseline=x=inf"),
        ({"text": "x" * 20_001}, "text has 20,001 characters"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            competitions.edit("Cup", **changes)
    with pytest.raises(InvalidArgument, match="competition 'Cup' exists"):
        create(competitions)
    with pytest.raises(InvalidArgument, match="1 to 100 characters"):
        create(competitions, "a/b")
    clock[0] = CLOSES + 51.0
    with pytest.raises(InvalidArgument, match="has closed, and its final scores are shown"):
        competitions.edit("Cup", closes_at=CLOSES + 99.0)


def test_members_and_competitions_are_removed(here: Process, competitions: Competitions) -> None:
    cup = create(competitions, max_team_size=2)
    for user, team in (("ann", "Owls"), ("bob", ""), ("eve", "")):
        competitions.join(cup, number(here, user), team=team)
        attempt(here, user, 1.0, 1.0)
    assert [(row["user"], row["team"]) for row in competitions.members(cup["id"]) if row["team"]] == [("ann", "Owls")]
    competitions.remove("Cup", "ann")
    with pytest.raises(InvalidArgument, match="'ann' does not take part"):
        competitions.remove("Cup", "ann")
    accounts = Accounts(here.store, here.tokens)
    accounts.disable("eve")
    accounts.delete("eve")
    here.scores.boards.clear()
    assert [row["user"] for row in competitions.public_board(cup)] == ["bob"]
    assert here.count(Team.__table__) == 1
    competitions.delete("Cup")
    assert here.count(Team.__table__) == here.count(Member.__table__) == 0
    assert len(here.scores.all_attempts()) == 2
    with pytest.raises(NotFound):
        competitions.get(cup["id"])
    with pytest.raises(InvalidArgument, match="'Cup' does not exist"):
        competitions.find("Cup")


def test_competitions_by_command(tmp_path: Path, clock: list[float]) -> None:
    clock[0] = time.mktime((2026, 6, 1, 12, 0, 0, 0, 0, 0))
    settings = make_settings(tmp_path, offers=(make_offer(CARTPOLE, backend="serial", abandon_penalty=0.0),))

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["serve", "competitions", *arguments, "--database", settings.database])

    assert "does not exist" in panel_text(run("list"))
    with process(settings) as here:
        (tmp_path / "rules.txt").write_text("Keep it up.\n", encoding="utf-8")
        times = ("--opens", "2026-01-01", "--closes", "2036-12-24T18:00+02:00")
        text = ("--text", str(tmp_path / "rules.txt"), "--baseline", "Up=20.5")
        code = run("create", "Cup", "--env", CARTPOLE, *times, *text, "--max-team-size", "3", "--invite").stdout.strip()
        assert code.startswith("join_")
        competitions = Competitions(here.store)
        cup = competitions.find("Cup")
        assert (cup["opens_at"], cup["closes_at"]) == (1_767_225_600.0, 2_113_747_200.0)
        assert (cup["text"], cup["baseline_name"], cup["baseline_score"]) == ("Keep it up.", "Up", 20.5)
        assert run("create", "Open", "--env", "Turbofan-v0", *times).stdout == ""
        assert competitions.find("Open")["env"] == "envfleet/Turbofan-v0"
        for options, message in (
            (("create", "Cup", "--env", CARTPOLE, *times), "competition 'Cup' exists"),
            (("create", "X", "--env", CARTPOLE, "--opens", "soon", "--closes", "2027-01-01"), "--opens soon: pass"),
            (("create", "X", "--env", "Nowhere-v0", *times), "Nowhere"),
            (("edit", "Cup", "--baseline", "twenty"), "pass NAME=SCORE"),
            (("edit", "Cup", "--closes", "2037-01-01"), "would close it as this day begins: pass a time"),
            (("edit", "Cap", "--closes", "2037-01-01T09"), "'Cap' does not exist"),
        ):
            refused = run(*options)
            assert (refused.exit_code, message in panel_text(refused)) == (2, True), panel_text(refused)
        competitions.join(cup, number(here, "ann"), code=code, team="Owls")
        assert run("edit", "Cup", "--closes", "2035-01-01T00:00", "--max-team-size", "4").exit_code == 0
        assert run("members", "Cup").stdout.startswith("user,team,joined_at\nann,Owls,")
        assert "Cup" in run("list").stdout
        attempt(here, "ann", 3.0, 1.5, begin=1_767_225_601.0, end=1_767_225_602.0)
        attempt(here, "ann", None, None, begin=1_767_225_603.0)  # left when its second half went badly
        rows = list(csv.DictReader(io.StringIO(run("scores", "Cup").stdout)))
        assert rows[-1] == {
            "team": "Owls",
            "members": "ann",
            "started": "2",
            "attempts": "1",
            "public_rank": "1",
            "public_score": "3.0",
            "final_rank": "1",
            "final_score": "1.5",
        }
        assert len(rows) == 1  # without the baseline
        assert run("invite", "Cup").stdout.startswith("join_")
        assert run("remove", "Cup", "ann").exit_code == 0
        assert run("delete", "Cup").exit_code == 0
        assert [row["name"] for row in competitions.rows()] == ["Open"]
