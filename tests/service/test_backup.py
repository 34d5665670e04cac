"""Backups made while episodes end, restored, and what grows on the disk."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import stat
import threading
import time
from pathlib import Path

import numpy as np
import sqlalchemy as sa
from tests.service.conftest import Caller
from tests.service.serving import make_settings, serve_here
from tests.service.test_fleets import CARTPOLE, Process, process
from tests.service.test_operations import panel_text
from tests.waiting import wait_until
from typer.testing import CliRunner, Result

from envfleet.cli.app import app
from envfleet.service.database.models import Episode, Usage
from envfleet.service.service import Service


def run(database: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["serve", *arguments, "--database", database])


def count_episodes(file: Path) -> int:
    with contextlib.closing(sqlite3.connect(file)) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert copy.execute("PRAGMA foreign_key_check").fetchall() == []
        # Every episode has the events that it is made of, and no event stands alone.
        torn = (
            "SELECT count(*) FROM episodes AS e WHERE (SELECT count(*) FROM events AS v WHERE v.fleet_id = e.fleet_id "
            "AND v.seq BETWEEN e.first_seq AND e.last_seq) != e.last_seq - e.first_seq + 1"
        )
        assert copy.execute(torn).fetchone() == (0,)
        count: int = copy.execute("SELECT count(*) FROM episodes").fetchone()[0]
        return count


def play_until(caller: Caller, stop: threading.Event, ended: list[int]) -> None:
    """Play one-step episodes; `ended` counts those with an answer to their end."""
    fleet = caller.create(num_envs=4, autoreset_mode="SAME_STEP")
    reply = caller.call(f"/fleets/{fleet}/reset", seq=0)
    while not stop.is_set():
        reply = caller.call(f"/fleets/{fleet}/step", seq=reply["seq"], actions=np.full(4, 2))
        ended[0] += 4


def test_a_backup_under_load_loses_no_finished_episode(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    stop = threading.Event()
    with serve_here(settings) as (http, service):
        counts = [[0] for _ in range(3)]
        threads = [
            threading.Thread(
                target=play_until, args=(Caller(http, service.tokens.create(f"user {k}")), stop, counts[k])
            )
            for k in range(3)
        ]
        for thread in threads:
            thread.start()
        try:
            copies = []
            for k in range(4):
                target = 100 * (k + 1)
                wait_until(lambda target=target: sum(count for (count,) in counts) >= target)  # type: ignore[misc]  # bound above
                before = sum(count for (count,) in counts)
                result = run(settings.database, "backup", str(tmp_path / f"copy{k}.db"))
                assert result.exit_code == 0, panel_text(result)
                copies.append((before, tmp_path / f"copy{k}.db", sum(count for (count,) in counts)))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert any(after > before for before, _, after in copies)  # it was made under load
        for before, copy, _ in copies:
            assert count_episodes(copy) >= before
            assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        assert count_episodes(copies[-1][1]) <= _count(service)
    assert not list(tmp_path.glob(".*.partial"))


def _count(service: Service) -> int:
    return int(service.store.value(sa.select(sa.func.count(Episode.id))))


def test_a_service_goes_on_from_a_restored_backup(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    with process(settings) as here:
        token = here.tokens.create("ann")
        user = here.tokens.check(token)
        fleet = here.create(user)
        first = here.reset(user, fleet, seeds=3)
        assert run(settings.database, "backup", str(tmp_path / "copy.db")).exit_code == 0
        expected = here.step(user, fleet, first["seq"], [0, 1, 0])
        refused = run(settings.database, "restore", str(tmp_path / "copy.db"))
        assert (refused.exit_code, "exists: a running service may be using it" in panel_text(refused)) == (2, True)
        again = run(settings.database, "backup", str(tmp_path / "copy.db"))
        assert (again.exit_code, "pass the name of a new file" in panel_text(again)) == (2, True)
    other = tmp_path / "other"
    other.mkdir()
    restored = make_settings(other)
    assert run(restored.database, "restore", str(tmp_path / "copy.db")).exit_code == 0
    with process(restored) as there:
        user = there.tokens.check(token)
        reply = there.step(user, fleet, first["seq"], [0, 1, 0])
        np.testing.assert_array_equal(reply["observations"], expected["observations"])


def test_what_is_no_backup_is_refused(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'service.db'}"
    with process(make_settings(tmp_path)) as here:
        here.tokens.create("ann")
        run(database, "backup", str(tmp_path / "copy.db"))
    whole = (tmp_path / "copy.db").read_bytes()
    empty = sqlite3.connect(tmp_path / "empty.db")
    empty.execute("CREATE TABLE t (x)")
    empty.close()
    (tmp_path / "text.db").write_text("hello" * 1000, encoding="utf-8")
    (tmp_path / "torn.db").write_bytes(whole[: len(whole) // 2])
    target = f"sqlite:///{tmp_path / 'new.db'}"
    for name, message in (
        ("none.db", "does not exist"),
        ("empty.db", "is not a backup of a service"),
        ("text.db", "is not a backup of a service"),
        ("torn.db", "torn.db is"),
    ):
        refused = run(target, "restore", str(tmp_path / name))
        text = "".join(panel_text(refused).split())  # as paths wrap at any letter
        assert (refused.exit_code, message.replace(" ", "") in text) == (2, True), panel_text(refused)
    assert not (tmp_path / "new.db").exists()
    shutil.move(tmp_path / "service.db", tmp_path / "old.db")
    (tmp_path / "service.db-wal").touch()
    refused = run(database, "restore", str(tmp_path / "copy.db"))
    assert "service.db-walexists" in "".join(panel_text(refused).split())  # because the path wraps


def test_postgres_has_a_backup_of_its_own(postgres_url: str, tmp_path: Path) -> None:
    for command, program in (("backup", "pg_dump --format=custom"), ("restore", "pg_restore --dbname=URL")):
        refused = run(postgres_url, command, str(tmp_path / "copy"))
        assert (refused.exit_code, program in panel_text(refused)) == (2, True), panel_text(refused)


def test_episodes_of_training_are_kept_for_a_while_only(database: str, tmp_path: Path) -> None:
    """Without that the disk would fill; scores and the episodes that they are made of stay."""
    settings = make_settings(tmp_path, database=database, retention_days=1.0)
    with process(settings) as here:
        user = here.user("ann")
        _end_episodes(here, user.user_id, 1200)
        here.fleets.tend()
        kept = here.store.rows(sa.select(Episode.place, Episode.ended_at))
        assert sorted(row["place"] is None for row in kept) == [False] * 3 + [True] * 3
        assert all(row["place"] is not None or row["ended_at"] > 2.0 for row in kept)
        assert [row["day"] for row in here.store.rows(sa.select(Usage.day))] == [int(time.time() // 86_400)]


def _end_episodes(here: Process, user_id: int, num_old: int) -> None:
    """Insert old episodes of training, three old ranked ones, and three new ones of training."""
    now, common = time.time(), {"user_id": user_id, "env": CARTPOLE, "outcome": "terminated", "details": {}}
    common |= {"env_index": 0, "started_at": 0.0, "last_seq": 1, "total": 1.0, "counted": 1.0, "length": 1}
    rows = [{"fleet_id": "old", "place": None, "ended_at": 1.0, "first_seq": k} for k in range(num_old)]
    rows += [{"fleet_id": "ranked", "place": k, "ended_at": 1.0, "first_seq": k} for k in range(3)]
    rows += [{"fleet_id": "new", "place": None, "ended_at": now, "first_seq": k} for k in range(3)]
    with here.store.engine.begin() as connection:
        connection.execute(sa.insert(Episode), [{**common, **row} for row in rows])
        days = [1, int(now // 86_400)]
        connection.execute(sa.insert(Usage), [{"user_id": user_id, "day": day, "steps": 1} for day in days])
