"""Scores of very many attempts: those that a plain loop finds, and reading them once for many visitors."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from tests.service.serving import make_settings
from tests.service.test_fleets import TURBOFAN, Process, process

from envfleet.service.database.models import Attempt
from envfleet.service.database.scores import fleets_that_count

OTHER = "CartPole-v1"


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, list[dict[str, Any]]]]:
    rng = np.random.default_rng(0)
    with process(make_settings(tmp_path_factory.mktemp("scores"))) as here:
        users = [here.user(name).user_id for name in ("ann", "bob", "joe", "nobody")]
        rows = [
            {
                "user_id": users[int(rng.integers(3))],
                "fleet_id": str(k),
                "env": str(rng.choice([TURBOFAN, OTHER])),
                "episodes": 100,
                "started_at": float(k),
                "ended_at": 50.0 + k,
                "score": None if rng.random() < 0.2 else float(rng.integers(-50, 50)),
                "void_reason": "copied" if rng.random() < 0.1 else None,
            }
            for k in range(600)
        ]
        with here.store.engine.begin() as connection:
            connection.execute(sa.insert(Attempt), rows)
        yield here, rows


@pytest.mark.parametrize("env", [TURBOFAN, OTHER])
def test_scores_are_those_of_a_plain_loop(full: tuple[Process, list[dict[str, Any]]], env: str) -> None:
    here, rows = full
    counted: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if row["env"] == env and row["score"] is not None and row["void_reason"] is None:
            counted.setdefault(row["user_id"], []).append(row)
    best = [max(own_rows, key=lambda row: (row["score"], -row["ended_at"])) for own_rows in counted.values()]
    board = here.scores.board(env)
    assert sorted((row["score"], row["ended_at"]) for row in board) == sorted(
        (row["score"], row["ended_at"]) for row in best
    )
    assert [row["score"] for row in board] == sorted((row["score"] for row in board), reverse=True)
    assert sorted(row["attempts"] for row in board) == sorted(map(len, counted.values()))
    kept = {row["fleet_id"] for row in here.store.rows(fleets_that_count())}
    assert {row["fleet_id"] for row in best} <= kept
    assert len(kept) < 100


def test_many_who_look_at_once_read_a_leaderboard_once(
    full: tuple[Process, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, read, calls = full[0].scores, full[0].scores.board, []

    def board(env: str) -> list[dict[str, Any]]:
        calls.append(env)
        return read(env)

    monkeypatch.setattr("envfleet.service.database.scores._FRESH_S", 600.0)
    monkeypatch.setattr(scores, "board", board)
    with ThreadPoolExecutor(8) as pool:
        shown = list(pool.map(lambda _: scores.fresh_board(TURBOFAN), range(16)))
    assert calls == [TURBOFAN]
    assert shown == [read(TURBOFAN)] * 16
