"""The player that comes with the package is there, small, and strong."""

from __future__ import annotations

import pytest

from envfleet.envs.games import known_game
from envfleet.training.evaluation import evaluate
from envfleet.training.games.players import load_player


def test_the_champion_is_small() -> None:
    assert known_game("hockey").files["champion"].stat().st_size < 1_000_000
    assert load_player("champion").name == "champion"


@pytest.mark.parametrize("opponent", ["strong", "weak"])
def test_the_champion_beats_the_scripted_players_from_both_sides(opponent: str) -> None:
    result = evaluate("champion", opponent, games=400, seed=11)
    for side, score in result.sides.items():
        assert score.win_rate > 0.9, side
