"""Ratings find out what games were drawn from."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from envfleet.envs.games import known_game
from envfleet.training.evaluation import rate

ANCHORS = known_game("hockey").anchors

TRUE = {"weak": 22.0, "strong": 25.0, "best": 36.0, "good": 30.0, "same": 25.0, "bad": 16.0}


def results_of(strengths: dict[str, float], games: int, draw_share: float) -> dict[tuple[str, str], list[int]]:
    """Games of a Bradley-Terry model in which some are drawn, the expected score staying as it is."""
    rng, results = np.random.default_rng(4), dict[tuple[str, str], list[int]]()
    for _, (one, two) in itertools.product(range(games), itertools.combinations(strengths, 2)):
        score = 1 / (1 + math.exp((strengths[two] - strengths[one]) / math.hypot(25 / 6, 25 / 6)))
        drawn = 2 * draw_share * min(score, 1 - score)
        place = rng.random()
        outcome = 1 if place < score - drawn / 2 else 0 if place < score + drawn / 2 else -1
        results.setdefault((one, two), []).append(outcome)
    return results


@pytest.mark.parametrize("draw_share", [0.0, 0.7])
def test_ratings_are_those_games_were_drawn_from(draw_share: float) -> None:
    ratings = rate([*TRUE], results_of(TRUE, 200, draw_share), ANCHORS)
    for name, strength in TRUE.items():
        assert ratings[name].mu == pytest.approx(strength, abs=0.0 if name in ANCHORS else 2.0)
        assert ratings[name].games == 1000
        assert ratings[name].is_anchor == (name in ANCHORS)
    assert 0.5 < ratings["best"].sigma < 2


def test_ratings_are_surer_with_more_games() -> None:
    few, many = (rate([*TRUE], results_of(TRUE, games, 0.5), ANCHORS)["best"].sigma for games in (20, 200))
    assert many < few / 2


def test_a_draw_brings_players_together() -> None:
    drawn = rate(["strong", "other"], {("other", "strong"): [1, 0]}, ANCHORS)
    won = rate(["strong", "other"], {("other", "strong"): [1]}, ANCHORS)
    assert drawn["strong"].mu == 25.0 < drawn["other"].mu < won["other"].mu
