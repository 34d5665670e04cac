"""Scores of very many episodes: those that a plain loop finds, and without looking at all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from tests.service.serving import make_settings
from tests.service.test_fleets import PENALTY, TURBOFAN, Process, process

from envfleet.service.database.models import Episode
from envfleet.service.database.scores import _board
from envfleet.service.offers import make_offer

OTHER = "CartPole-v1"


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, list[dict[str, Any]]]]:
    rng = np.random.default_rng(0)
    offers = make_offer(TURBOFAN), make_offer(OTHER, backend="serial", abandon_penalty=7.5)
    with process(make_settings(tmp_path_factory.mktemp("scores"), offers=offers)) as here:
        users = [here.user(name).user_id for name in ("ann", "bob", "joe", "nobody")]
        rows = [
            {
                "user_id": users[int(rng.integers(3))],
                "fleet_id": str(k),
                "env": str(rng.choice([TURBOFAN, OTHER])),
                "env_index": int(rng.integers(5)),
                "is_ranked": bool(rng.random() < 0.8),
                "started_at": 1.0 + int(rng.integers(30)),  # many at once
                "ended_at": 50.0 + k,
                "first_seq": k,
                "last_seq": k,
                "total": float(rng.integers(-100, 100)),
                "length": 1,
                "outcome": str(rng.choice(["terminated", "truncated", "abandoned"])),
                "details": {},
            }
            for k in range(600)
        ]
        with here.store.engine.begin() as connection:
            connection.execute(sa.insert(Episode), rows)
        yield here, rows


def expect(rows: list[dict[str, Any]], env: str, limit: int) -> dict[int, list[float]]:
    """Return the scored episodes of each user, newest first."""
    ranked = [{**row, "id": k} for k, row in enumerate(rows) if row["env"] == env and row["is_ranked"]]
    penalty = {TURBOFAN: PENALTY, OTHER: 7.5}[env]
    totals: dict[int, list[float]] = defaultdict(list)
    for row in sorted(ranked, key=lambda row: (row["started_at"], row["env_index"], row["id"]), reverse=True):
        if len(totals[row["user_id"]]) < limit:
            totals[row["user_id"]].append(row["total"] - (penalty if row["outcome"] == "abandoned" else 0.0))
    return totals


@pytest.mark.parametrize("limit", [1, 7, 100, 10_000])
@pytest.mark.parametrize("env", [TURBOFAN, OTHER])
def test_scores_are_those_of_a_plain_loop(full: tuple[Process, list[dict[str, Any]]], env: str, limit: int) -> None:
    here, rows = full
    expected = expect(rows, env, limit)
    board = here.scores.board(env, limit)
    assert [row["score"] for row in board] == pytest.approx(sorted(map(np.mean, expected.values()), reverse=True))
    assert sorted(row["episodes"] for row in board) == sorted(map(len, expected.values()))
    assert sorted(row["best"] for row in board) == sorted(map(max, expected.values()))
    for user_id, counted in expected.items():
        assert here.scores.history(env, user_id, limit) == counted[::-1]
        assert here.scores.metrics(env, user_id, limit)["total_reward"] == pytest.approx(sum(counted))


def test_a_leaderboard_does_not_look_at_all_episodes(full: tuple[Process, list[dict[str, Any]]]) -> None:
    engine = full[0].store.engine
    query = str(_board(TURBOFAN, 100, 0.0).compile(engine, compile_kwargs={"literal_binds": True}))
    with engine.connect() as connection:
        plan = [row[-1] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}")]
    scans = [step for step in plan if "episodes" in step]
    assert len(scans) == 2, plan
    assert all("INDEX episodes_last_begun (env=? AND is_ranked=? AND user_id=?" in step for step in scans), plan


def test_many_who_look_at_once_read_a_leaderboard_once(
    full: tuple[Process, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, read, asked = full[0].scores, full[0].scores.board, []

    def board(env: str) -> list[dict[str, Any]]:
        asked.append(env)
        return read(env)

    monkeypatch.setattr("envfleet.service.database.scores._FRESH_S", 600.0)
    monkeypatch.setattr(scores, "board", board)
    with ThreadPoolExecutor(8) as pool:
        shown = list(pool.map(lambda _: scores.fresh_board(TURBOFAN), range(16)))
    assert asked == [TURBOFAN]
    assert shown == [read(TURBOFAN)] * 16
