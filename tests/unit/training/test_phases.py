"""Phases of a configuration file: older spellings, shares of opponents."""

from __future__ import annotations

from typing import Any

from tests.unit.training.written import changed

from envfleet.training.config import parse_config


def test_keep_mode_may_stand_next_to_kwargs() -> None:
    """Files written before settings of games moved into `kwargs`, and the copies in the folders of their runs."""
    phase = {"name": "a", "episodes": 1, "opponent": {"type": "none"}}
    old: dict[str, Any] = {
        "curriculum": {"phases": [phase | {"environment": {"keep_mode": False}}]},
        "agent": {"type": "SAC"},
    }
    assert parse_config(old).curriculum.phases[0].environment.kwargs == {"keep_mode": False}
    old["curriculum"]["phases"][0]["environment"] = {"id": "CartPole-v1", "keep_mode": True}
    assert parse_config(old).curriculum.phases[0].environment.kwargs == {}


def test_older_spelling_of_matchmaking_is_read() -> None:
    opponent = changed("curriculum", "phases", 1, "opponent", {"type": "snapshots", "matchmaking": "prioritised"})
    new = changed("curriculum", "phases", 1, "opponent", {"type": "snapshots", "matchmaking": "prioritized"})
    assert parse_config(opponent) == parse_config(new)
