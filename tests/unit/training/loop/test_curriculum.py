"""Position of a run in its curriculum, and bounds of a win rate."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from envfleet.evaluation.intervals import wilson
from envfleet.training.events import Results
from envfleet.training.loop.curriculum import CurriculumProgress
from envfleet.training.phases import Phase


def phase(name: str, **rest: Any) -> Phase:
    return Phase.model_validate({"name": name, "opponent": {"type": "basic_weak"}, **rest})


def ended(*winners: int) -> Results:
    """Episodes with these winners."""
    counts, zeros = np.arange(len(winners)), np.zeros(len(winners))
    return Results(
        env_indices=counts, returns=zeros, shaped_returns=zeros, lengths=counts, winners=np.array(winners),
        truncated=zeros > 0, modes=("",) * len(winners), opponents=("weak",) * len(winners),
    )  # fmt: skip


def test_phases_end_by_episodes_or_by_transitions() -> None:
    curriculum = CurriculumProgress([phase("a", episodes=3), phase("b", transitions=100)])
    curriculum.count(64, ended(0, -1))
    assert (curriculum.phase.name, curriculum.is_phase_over) == ("a", False)
    assert curriculum.share == pytest.approx(1 / 3)
    curriculum.count(64, ended(1, 1))
    assert (curriculum.episodes, curriculum.transitions, curriculum.is_phase_over) == (4, 128, True)
    curriculum.advance()
    assert (curriculum.phase.name, curriculum.share, curriculum.is_phase_over) == ("b", 0.5, False)
    curriculum.count(99, ended(*[0] * 50))
    assert (curriculum.share, curriculum.is_phase_over) == (0.995, False)
    curriculum.count(1)
    assert (curriculum.share, curriculum.is_phase_over) == (1.0, True)
    curriculum.advance()
    assert (curriculum.is_finished, curriculum.share) == (True, 1.0)
    assert curriculum.phase.name == "b"


def test_a_phase_ends_once_the_lower_bound_passes_the_rate() -> None:
    promote = {"win_rate": 0.8, "games": 100}
    curriculum = CurriculumProgress([phase("a", episodes=10_000, promote_at=promote), phase("b", episodes=1)])
    curriculum.count(1, ended(*[1] * 99))
    assert not curriculum.is_phase_over  # too few games, however well they went
    curriculum.count(1, ended(*[-1] * 13))
    assert not curriculum.is_phase_over  # 87 of the latest 100: the bound is 0.790
    curriculum.count(1, ended(*[1] * 87))
    assert not curriculum.is_phase_over  # 87 again
    curriculum.count(1, ended(1))
    assert curriculum.is_phase_over  # 88: 0.802


@pytest.mark.parametrize(("wins", "games"), [(3, 7), (90, 100), (190, 200), (1, 20_000)])
def test_bounds_follow_their_own_standard_deviation(wins: int, games: int) -> None:
    for bound, side in zip(wilson(wins, games), (1, -1), strict=True):
        deviation = (bound * (1 - bound) / games) ** 0.5
        assert wins / games - bound == pytest.approx(side * NormalDist().inv_cdf(0.975) * deviation)


def test_intervals_stay_from_0_to_1() -> None:
    # After 12 games without a win, rounding once put the lower bound above the share: the plot failed.
    assert all((wilson(0, games)[0], wilson(games, games)[1]) == (0.0, 1.0) for games in range(300))
