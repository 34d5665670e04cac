"""Evaluations against snapshots, and the resulting ratings."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.unit.training.own import Corridor, Looking

from envfleet.agents import SAC, SACConfig
from envfleet.training.config import parse_config
from envfleet.training.evaluation import Evaluation, Rating, Score
from envfleet.training.games.matches import MatchConfig, play
from envfleet.training.loop.evaluator import Evaluator, rate_learner
from envfleet.training.opponents.pool import SnapshotPool
from envfleet.training.plan import resolve

HOCKEY = spaces.Box(-np.inf, np.inf, (18,), np.float32), spaces.Box(-1.0, 1.0, (4,), np.float32)


ANCHORS = {"basic_strong": 25.0, "basic_weak": 22.0}


def learner_of(seed: int = 0) -> SAC:
    return SAC(*HOCKEY, SACConfig(hidden=(8,)), seed=seed)


def pool_of(learner: SAC, *transitions: int) -> SnapshotPool:
    pool = SnapshotPool(learner, 10)
    for count in transitions:
        learner.num_transitions = count
        pool.add()
    return pool


def met(*outcomes: int) -> Evaluation:
    return Evaluation("a", "b", "NORMAL", 0, Score(0, 0, 0), outcomes, {}, 0.0, 0.0)


def config_of(games: int) -> Any:
    phase = {"name": "a", "transitions": 1, "opponent": {"type": "snapshots"}}
    return parse_config(
        {"curriculum": {"phases": [phase]}, "training": {"eval_games": games}, "agent": {"type": "SAC"}}
    )


def test_a_learner_that_beats_everyone_is_rated_above_them() -> None:
    pool = pool_of(learner_of(), 1000)
    evaluations = {"basic_strong": met(*[1, 0] * 50), "basic_weak": met(*[1] * 100)}
    ratings = rate_learner(evaluations | {"snapshot_000001000": met(*[1, 1, -1] * 30)}, pool, ANCHORS)
    assert set(ratings) == {"learner", "snapshot_000001000"}
    learner, snapshot = ratings["learner"], ratings["snapshot_000001000"]
    assert 25 < snapshot.mu < learner.mu
    assert (pool.ratings, snapshot.games) == ({"snapshot_000001000": snapshot}, 90)


def test_snapshots_keep_ratings_and_the_learner_starts_over() -> None:
    pool = pool_of(learner_of(), 1000)
    games = {"basic_strong": met(*[0] * 60), "snapshot_000001000": met(*[1, -1] * 30)}
    first, second = rate_learner(games, pool, ANCHORS), rate_learner(games, pool, ANCHORS)
    assert second["snapshot_000001000"].games == 120
    assert second["snapshot_000001000"].sigma < first["snapshot_000001000"].sigma
    assert second["learner"].games == 120 == first["learner"].games


def test_ratings_are_saved_and_brought_back_exactly() -> None:
    learner = learner_of()
    pool, again = pool_of(learner, 1000, 2000), SnapshotPool(learner, 10)
    rate_learner({"basic_strong": met(1, 0, 1), "snapshot_000002000": met(1, -1, 0)}, pool, ANCHORS)
    again.load_state_dict(pool.state_dict())
    assert again.ratings == pool.ratings
    assert again.unsure(1) == ["snapshot_000001000"]


def test_least_rated_snapshots_play_first_newest_of_equals() -> None:
    pool = pool_of(learner_of(), 1, 2, 3, 4)
    pool.ratings["snapshot_000000004"] = Rating("snapshot_000000004", games=10)
    assert pool.unsure(2) == ["snapshot_000000003", "snapshot_000000002"]


def test_evaluations_use_snapshots_but_not_the_current_learner() -> None:
    learner = learner_of()
    pool = pool_of(learner, 1, 2, 3, 4)
    evaluator = Evaluator(resolve(config_of(8)), seed=1)
    result = evaluator.evaluate(learner, pool)
    assert set(result.results) == {"basic_strong", "basic_weak", "pool"}
    assert result.results["pool"]["games"] == 9  # 3 against each of three
    assert set(result.ratings) == {"learner", *(f"snapshot_00000000{number}" for number in (2, 3, 4))}
    before = pool.player("snapshot_000000004").weights()["actor"]
    learner.set_weights(learner_of(9).weights())
    after = pool.player("snapshot_000000004").weights()["actor"]
    assert all((before[name] == after[name]).all() for name in before)
    without = evaluator.evaluate(learner_of(), pool_of(learner_of()))
    evaluator.close()
    assert set(without.ratings) == {"learner"}
    assert without.score == pytest.approx(result.score)


class Counted(Corridor):
    """Counts how many environments were made."""

    num_instances = 0

    def __init__(self) -> None:
        type(self).num_instances += 1


def test_one_fleet_plays_all_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "num_instances", 0)
    config = parse_config(
        {
            "curriculum": {"phases": [{"name": "a", "transitions": 1, "environment": {"id": f"{__name__}:Counted"}}]},
            "training": {"eval_games": 5},
            "agent": {"type": "PPO"},
        }
    )
    with contextlib.closing(Evaluator(resolve(config), seed=1)) as evaluator:
        results = [vars(evaluator.evaluate(Looking(), pool_of(learner_of()))) for _ in range(3)]  # type: ignore[arg-type]
        assert results[0] == results[1] == results[2]
    assert Counted.num_instances == 5


def test_games_are_the_same_in_a_larger_fleet() -> None:
    match = MatchConfig(num_envs=300)
    with match.open(300) as fleet:
        for games in (140, 7):
            expected = play("strong", learner_of(), games, seed=2)
            actual = play("strong", learner_of(), games, seed=2, match=match, fleet=fleet)
            assert all(np.array_equal(vars(actual)[name], vars(expected)[name]) for name in vars(actual))
