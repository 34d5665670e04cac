"""Tournaments: all pairs, the matrix against games played directly, ratings, the picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from matplotlib.image import imread
from tests.unit.training.still import Still

from envfleet.agents import PPO, PPOConfig
from envfleet.envs.games import known_game
from envfleet.errors import InvalidArgument
from envfleet.training.evaluation import Rating, Tournament, find_checkpoints, run_tournament
from envfleet.training.games.matches import play
from envfleet.training.records.figures import draw_tournament, plot_tournament, style

VIEW = spaces.Box(-1, 1, (18,))
pytestmark = pytest.mark.timeout(1200)  # when the game is not compiled yet, on a busy machine


class Absent:
    """Does nothing."""

    def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
        return np.zeros((len(observations), 4))


@pytest.fixture(scope="module")
def tournament() -> Tournament:
    return run_tournament({"absent": Absent(), "weak": "weak", "still": Still(), "strong": "strong"}, games=60, seed=3)


def test_everybody_meets_everybody(tournament: Tournament) -> None:
    totals = tournament.wins + tournament.wins.T + tournament.draws
    np.testing.assert_array_equal(totals, 60 * (1 - np.eye(4)))
    one, two = tournament.names.index("still"), tournament.names.index("strong")
    games = play(Still(), "strong", 60, seed=3)
    assert tournament.wins[one, two] == (games.outcomes == 1).sum()
    assert tournament.wins[two, one] == (games.outcomes == -1).sum()
    assert sum(tournament.score(row).wins for row in range(4)) == sum(tournament.score(row).losses for row in range(4))


def test_a_player_that_does_nothing_is_last(tournament: Tournament) -> None:
    assert tournament.names[-1] == "absent"
    assert [rating.mu for rating in tournament.ratings] == sorted((r.mu for r in tournament.ratings), reverse=True)
    assert {rating.name: rating.mu for rating in tournament.ratings if rating.is_anchor} == {"weak": 22, "strong": 25}


def test_the_picture(tournament: Tournament, tmp_path: Path) -> None:
    picture = imread(plot_tournament(tournament, tmp_path / "tournament.png"))
    assert picture.shape[0] > 300
    assert picture[..., :3].std() > 0.1


@pytest.mark.parametrize("count", [2, 4, 12])
def test_names_that_are_long_paths_stand_beside_the_picture(count: int) -> None:
    # They used to run out of the picture on the left, and over the ratings from the right.
    names = [f"PPO_2026-01-31_12-00-00_1f0c22ab_vec256/{number:012}" for number in range(count)]
    ratings = tuple(Rating(name, 25.0 - place, 1.0, 10) for place, name in enumerate(names))
    wins = 1 - np.eye(count, dtype=np.int64)
    with style():
        figure = draw_tournament(Tournament(ratings, wins, np.zeros_like(wins), 2))
        figure.draw_without_rendering()
    left, right = (panel.get_tightbbox() for panel in figure.axes)  # with all that is written around them
    assert left is not None
    assert right is not None
    assert 0 <= left.x0 < left.x1 < right.x0 < right.x1 <= figure.bbox.x1
    assert 0 <= min(left.y0, right.y0) < max(left.y1, right.y1) <= figure.bbox.y1


def test_checkpoints_are_found(tmp_path: Path) -> None:
    for number, name in enumerate(("a/checkpoints/000000000100.pt", "a/checkpoints/best.pt", "a/resume.pt", "b.pt")):
        PPO(VIEW, spaces.Box(-1, 1, (4,)), PPOConfig(hidden=(4,)), seed=number).save(tmp_path / name)
    (tmp_path / "a/.resume.1a2b3c4d.pt").write_bytes(b"half a file, of a run that was killed")
    assert [*find_checkpoints(tmp_path, known_game("hockey").observation_space)] == ["a/000000000100", "a/best", "b"]
    assert [*find_checkpoints(tmp_path / "a", known_game("hockey").observation_space)] == ["000000000100", "best"]


def test_agents_of_other_environments_stay_away(tmp_path: Path) -> None:
    PPO(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), PPOConfig(hidden=(4,))).save(tmp_path / "balancing.pt")
    with pytest.raises(InvalidArgument, match=r"no checkpoint in .* is of an agent with observations of shape \(18,\)"):
        find_checkpoints(tmp_path, known_game("hockey").observation_space)
    PPO(VIEW, spaces.Box(-1, 1, (4,)), PPOConfig(hidden=(4,))).save(tmp_path / "player.pt")
    assert [*find_checkpoints(tmp_path, known_game("hockey").observation_space)] == ["player"]


def test_what_is_no_tournament_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="a tournament of 1 players, expected 2"):
        run_tournament({"weak": "weak"})
    with pytest.raises(InvalidArgument, match="is called 'strong', but is not that scripted player"):
        run_tournament({"weak": "weak", "strong": Still()})
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(InvalidArgument, match=rf"no saved agent \(\*\.pt\) in {folder}: pass"):
            find_checkpoints(folder, known_game("hockey").observation_space)
