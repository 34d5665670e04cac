"""Users created from CSV, edited, renamed, disabled and deleted; void attempts; tables as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from tests.service.serving import make_settings
from tests.service.test_fleets import CARTPOLE, Process, process
from tests.service.test_operations import panel_text
from typer.testing import CliRunner, Result

from envfleet.cli.app import app
from envfleet.errors import InvalidArgument
from envfleet.service.database.exports import ATTEMPT_COLUMNS, BOARD_COLUMNS, write_csv
from envfleet.service.database.models import Base, Episode, User
from envfleet.service.database.store import Store
from envfleet.service.offers import make_offer
from envfleet.service.refusals import Disabled, NotFound, Unauthorized
from envfleet.service.users.accounts import Accounts, read_users
from envfleet.service.users.auth import Identity

OFFERS = (make_offer(CARTPOLE, backend="serial", abandon_penalty=0.0, ranked_episodes=2),)


@pytest.fixture
def here(database: str, tmp_path: Path) -> Iterator[Process]:
    with process(make_settings(tmp_path, database=database, offers=OFFERS)) as opened:
        yield opened


@pytest.fixture
def accounts(here: Process) -> Accounts:
    return Accounts(here.store, here.tokens)


def attempt(here: Process, user: Identity, num_steps: int) -> str:
    """Play one attempt of so many steps, the rest of which is abandoned."""
    fleet = here.create(user, CARTPOLE, 2, "ranked")
    reply = here.reset(user, fleet)
    for step in range(num_steps):
        reply = here.step(user, fleet, reply["seq"], [step % 2] * 2)
    here.fleets.close_fleet(user.user_id, fleet)
    return fleet


def board(here: Process) -> list[tuple[str, float]]:
    return [(row["user"], row["score"]) for row in here.scores.board(CARTPOLE)]


def test_a_class_is_created_from_csv(here: Process, accounts: Accounts) -> None:
    text = '\ufeffname, role,max_live_envs\r\n ann ,,64\r\n"Bob, jr",admin,\r\n  zoë,participant,0\r\n'
    created = dict(accounts.create_many(text))
    assert list(created) == ["ann", "Bob, jr", "zoë"]
    identities = [here.tokens.check(token) for token in created.values()]
    assert [(user.name, user.role, user.max_live_envs) for user in identities] == [
        ("ann", "participant", 64),
        ("Bob, jr", "admin", None),
        ("zoë", "participant", 0),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the first line is ''"),
        ("ann\nbob\n", "the first line is 'ann'.*pass a header with name"),
        ("name,age\nann,3\n", "the first line is 'name,age'"),
        ("name\n", "no users below the header"),
        ("name\nann\nann\n", "'ann' occur twice"),
        ("name,role\nann\n", "line 2 has more or fewer values"),
        ("name\nann,bob\n", "line 2 has more or fewer values"),
        ("name,role\nann,king\n", "line 2: role='king'"),
        ("name,role\nbob,admin\n,admin\n", "line 3: name=''"),
        ("name\na/b\n", "line 2: name='a/b'"),
        ("name,max_live_envs\nann,-1\n", "line 2: max_live_envs='-1'"),
        ('name\n"ann\n', "is not CSV"),
        ("name\nnew\nold\n", "'old' exist already: .*no user was created"),
    ],
)
def test_of_a_faulty_table_nobody_is_created(here: Process, accounts: Accounts, text: str, message: str) -> None:
    here.tokens.create("old")
    with pytest.raises(InvalidArgument, match=message):
        accounts.create_many(text)
    assert [row["name"] for row in accounts.rows()] == ["old"]


def test_a_user_is_renamed_and_keeps_scores_and_tokens(here: Process, accounts: Accounts) -> None:
    token = here.tokens.create("ann", max_live_envs=7)
    attempt(here, here.tokens.check(token), 3)
    accounts.edit("ann", new_name="Ann B.", max_live_envs=None, max_steps_per_day=100)
    user = here.tokens.check(token)
    assert (user.name, user.max_live_envs, user.max_steps_per_day) == ("Ann B.", None, 100)
    assert board(here) == [("Ann B.", 3.0)]
    here.tokens.create("bob")
    for name, changes, message in (
        ("bob", {"new_name": "Ann B."}, "'Ann B.' is another user's"),
        ("bob", {"new_name": "x/y"}, "without slashes"),
        ("bob", {"role": "king"}, "pass one of participant, admin"),
        ("bob", {"max_live_envs": -3}, "max_live_envs=-3: pass a number from 0"),
        ("bob", {}, "nothing to change of user 'bob'"),
        ("ann", {"role": "admin"}, "user 'ann' does not exist"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            accounts.edit(name, **changes)


def test_a_disabled_user_can_do_nothing_but_still_counts(here: Process, accounts: Accounts) -> None:
    token = here.tokens.create("ann")
    attempt(here, here.tokens.check(token), 3)
    accounts.disable("ann")
    with pytest.raises(Disabled, match="user 'ann' is disabled"):
        here.tokens.check(token)
    assert here.tokens.remembered(token) is None
    assert board(here) == [("ann", 3.0)]
    accounts.enable("ann")
    assert here.tokens.check(token).name == "ann"


def test_an_administrator_always_remains(here: Process, accounts: Accounts) -> None:
    here.tokens.create("root", role="admin")
    other = here.tokens.check(here.tokens.create("boss", role="admin"))
    accounts.disable("boss")
    for change in (
        lambda: accounts.disable("root"),
        lambda: accounts.edit("root", role="participant"),
    ):
        with pytest.raises(InvalidArgument, match="'root' is the last administrator with a token"):
            change()
    number = next(row["id"] for row in here.tokens.list() if row["user"] == "root")
    with pytest.raises(InvalidArgument, match="last of an administrator"):  # the disabled one does not count
        here.tokens.revoke(number)
    accounts.enable(other.name)
    accounts.edit("root", role="participant")


def test_deleting_a_user_leaves_nothing_of_it(here: Process, accounts: Accounts) -> None:
    tokens = {name: here.tokens.create(name) for name in ("ann", "bob")}
    ann, bob = (here.tokens.check(token) for token in tokens.values())
    for user in (ann, bob):
        attempt(here, user, 3)
    running = here.create(ann)
    reply = here.reset(ann, running)
    with pytest.raises(InvalidArgument, match=r"'ann' is not disabled: disable it first.*deletes its attempts"):
        accounts.delete("ann")
    accounts.disable("ann")
    accounts.delete("ann")
    assert board(here) == [("bob", 3.0)]
    with pytest.raises(Unauthorized):
        here.tokens.check(tokens["ann"])
    held = here.fleets.held(running)
    assert held is not None
    here.fleets.drop(held)
    with pytest.raises(NotFound):  # a call that had passed the check of its token
        here.step(ann, running, reply["seq"], [0] * 3)
    owned = [table for table in Base.metadata.sorted_tables if "user_id" in table.columns]
    assert len(owned) >= 5
    for table in owned:
        users = {row["user_id"] for row in here.store.rows(sa.select(table.c.user_id))}
        assert users <= {bob.user_id}, table.name
    assert here.store.count_events(running) == 0
    here.fleets.tend()
    assert here.tokens.check(here.tokens.create("ann")).name == "ann"  # the name is free again
    assert board(here) == [("bob", 3.0)]


def test_a_call_on_its_way_survives_no_deletion(here: Process, accounts: Accounts) -> None:
    """Its fleet is in memory; nothing of the user may come back to the database."""
    ann = here.user("ann")
    fleet = here.create(ann)
    reply = here.reset(ann, fleet)
    accounts.disable("ann")
    accounts.delete("ann")
    with pytest.raises(NotFound):
        here.step(ann, fleet, reply["seq"], [0] * 3)
    assert here.store.count_events(fleet) == 0


def test_a_void_attempt_is_kept_and_does_not_count(here: Process) -> None:
    ann, bob = here.user("ann"), here.user("=bob")
    for user, steps in ((ann, 5), (ann, 4), (bob, 3)):
        attempt(here, user, steps)
    assert board(here) == [("ann", 5.0), ("=bob", 3.0)]
    best = here.scores.attempts(ann.user_id)[1]
    assert here.scores.fresh_board(CARTPOLE)[0]["score"] == 5.0
    here.scores.void(best["id"], " copied from bob ")
    assert board(here) == [("ann", 4.0), ("=bob", 3.0)]
    assert here.scores.fresh_board(CARTPOLE)[0]["score"] == 4.0
    kept = here.scores.attempts(ann.user_id)[1]
    assert (kept["void_reason"], kept["score"], kept["ended"]) == ("copied from bob", 5.0, 2)
    rows = list(csv.DictReader(io.StringIO(write_csv(here.scores.all_attempts(CARTPOLE), ATTEMPT_COLUMNS))))
    assert [(row["user"], row["score"], row["void_reason"]) for row in rows] == [
        ("ann", "5.0", "copied from bob"),
        ("ann", "4.0", ""),
        ("'=bob", "3.0", ""),  # which a spreadsheet does not calculate
    ]
    table = list(csv.DictReader(io.StringIO(write_csv(here.scores.board(CARTPOLE), BOARD_COLUMNS))))
    assert [(row["rank"], row["user"], row["score"]) for row in table] == [("1", "ann", "4.0"), ("2", "'=bob", "3.0")]
    here.scores.unvoid(best["id"])
    assert board(here)[0] == ("ann", 5.0)
    assert here.scores.all_attempts("elsewhere") == []
    for reason in ("", " ", "x" * 301):
        with pytest.raises(InvalidArgument, match="pass 1 to 300 characters"):
            here.scores.void(best["id"], reason)
    with pytest.raises(InvalidArgument, match="attempt 4711 does not exist"):
        here.scores.void(4711, "why")


def test_a_database_of_the_first_version_is_brought_up_to_date(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(database)
    store.migrate()
    expected = {table: _columns(store, table) for table in Base.metadata.tables}
    with store.engine.begin() as connection:
        connection.execute(sa.insert(User).values(name="ann", role="admin", created_at=1.0))
        episode: dict[str, Any] = {"fleet_id": "f", "env": "e", "outcome": "terminated", "details": {"flights": 3}}
        numbers = ("user_id", "env_index", "started_at", "ended_at", "first_seq", "last_seq", "total", "counted")
        connection.execute(sa.insert(Episode).values(**episode, **dict.fromkeys(numbers, 1), length=7))
        if not store.is_sqlite:
            connection.execute(sa.text("DROP INDEX episodes_of_attempt"))
            connection.execute(
                sa.text(
                    "ALTER TABLE episodes DROP CONSTRAINT episodes_fleet_id_first_seq_env_index_key, "
                    "ADD UNIQUE (fleet_id, env_index, first_seq), ADD UNIQUE (fleet_id, place)"
                )
            )
        for table in ("members", "teams", "competitions"):
            connection.execute(sa.text(f"DROP TABLE {table}"))
        connection.execute(sa.text("DROP INDEX episodes_by_age"))
        connection.execute(sa.text("ALTER TABLE users DROP COLUMN disabled_at"))
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0005'"))
    store.close()
    again = Store(database)
    # As a process that is killed in between: what it had changed must not stay in part.
    with monkeypatch.context() as patch:
        patch.setattr("alembic.op.create_table", _break_off)
        with pytest.raises(RuntimeError, match="killed"):
            again.migrate()
    again.migrate()
    assert {table: _columns(again, table) for table in Base.metadata.tables} == expected
    with again.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    assert [row["details"] for row in again.rows(sa.select(Episode.__table__))] == [{"flights": 3}]
    assert [row["disabled_at"] for row in again.rows(sa.select(User.__table__))] == [None]
    again.close()


def _break_off(*_: Any) -> None:
    raise RuntimeError("killed")


def _columns(store: Store, table: str) -> dict[str, Any]:
    return {
        column["name"]: (str(column["type"]), column["nullable"])
        for column in sa.inspect(store.engine).get_columns(table)
    }


def test_users_and_attempts_by_command(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, offers=OFFERS)

    def run(*arguments: str, **more: Any) -> Result:
        return CliRunner().invoke(app, [*arguments, "--database", settings.database], **more)

    for command in (["users", "list"], ["attempts", "list"]):
        refused = run("serve", *command)
        assert (refused.exit_code, "does not exist" in refused.stderr) == (2, True)
    with process(settings) as here:
        (tmp_path / "class.csv").write_text("name,role\nann,\nroot,admin\n", encoding="utf-8")
        created = run("serve", "users", "create", str(tmp_path / "class.csv"))
        rows = list(csv.DictReader(io.StringIO(created.stdout)))
        assert [row["name"] for row in rows] == ["ann", "root"]
        ann = here.tokens.check(rows[0]["token"])
        attempt(here, ann, 2)
        twice = run("serve", "users", "create", "-", input="name\nann\n")
        assert (twice.exit_code, "'ann' exist already" in panel_text(twice)) == (2, True)
        latin = tmp_path / "latin.csv"
        latin.write_bytes("name\nzoë\n".encode("latin-1"))
        assert "is not UTF-8" in panel_text(run("serve", "users", "create", str(latin)))
        assert run("serve", "users", "edit", "ann", "--name", "Ann", "--max-live-envs", "9").exit_code == 0
        assert run("serve", "users", "edit", "Ann", "--max-live-envs", "none").exit_code == 0
        assert "pass a number" in panel_text(run("serve", "users", "edit", "Ann", "--max-live-envs", "few"))
        again = run("token", "create", "Ann")
        assert again.stdout.startswith("ef_")
        assert "User 'Ann' exists: this is another token for it, next to 1 that stay valid" in again.stderr
        assert run("token", "create", "new").stderr == ""
        assert "Ann" in run("serve", "attempts", "list").stdout
        assert run("serve", "attempts", "void", "1", "copied").exit_code == 0
        assert "copied" in run("serve", "attempts", "list", "--csv").stdout
        assert run("serve", "attempts", "scores", CARTPOLE).stdout == ",".join(BOARD_COLUMNS) + "\n"
        assert run("serve", "attempts", "unvoid", "1").exit_code == 0
        assert "1,Ann,2.0" in run("serve", "attempts", "scores", CARTPOLE).stdout
        for command in (["scores", "Chess-v0"], ["list", "--env", "Chess-v0"]):
            missing = panel_text(run("serve", "attempts", *command))
            assert f"environment 'Chess-v0' has no attempts; those with attempts: {CARTPOLE}" in missing
        assert run("serve", "users", "disable", "Ann").exit_code == 0
        assert "Ann" in run("serve", "users", "list").stdout
        assert run("serve", "users", "enable", "Ann").exit_code == 0
        assert "is not disabled" in panel_text(run("serve", "users", "delete", "Ann"))
        run("serve", "users", "disable", "Ann")
        assert run("serve", "users", "delete", "Ann").exit_code == 0
        assert "Ann" not in run("serve", "users", "list").stdout


def test_options_before_a_command_are_refused() -> None:
    refused = CliRunner().invoke(app, ["serve", "--database", "sqlite:///x.db", "users", "list"])
    assert (refused.exit_code, "write its own options after its name" in panel_text(refused)) == (2, True)


def test_a_table_of_users_may_have_a_single_column() -> None:
    assert read_users("name\nann\n") == [{"role": "participant", "name": "ann"}]
