"""Phases of a configuration file: older spellings, shares of opponents."""

from __future__ import annotations

from typing import Any

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
