"""Plans that configurations are resolved to: agents, action tables, games."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box
from tests.unit.training.written import changed, clean, with_agent

from envfleet import registry
from envfleet.agents import TD3, TD3Config, load_agent
from envfleet.envs.hockey import action_table
from envfleet.training.config import parse_config
from envfleet.training.plan import resolve
from envfleet.training.schema import json_schema


class Quieter(TD3):
    """An agent of a user's own."""

    name = "Quieter"


def test_an_agent_that_is_registered_is_configured_and_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(registry.AGENTS, "Quieter", f"{__name__}:Quieter")
    data = with_agent("Quieter", exploration_noise=0.5)
    assert json_schema()["$defs"]["AgentSection"]["properties"]["type"]["anyOf"][0]["enum"][-1] == "Quieter"
    config = resolve(parse_config(data)).agent_config
    assert config == TD3Config(exploration_noise=0.5, warmup=10_000)
    space = Box(-1.0, 1.0, (2,))
    Quieter(space, space, config).save(tmp_path / "quieter.pt")
    assert type(load_agent(tmp_path / "quieter.pt")) is Quieter


def test_dddqn_chooses_from_the_table_it_asks_for() -> None:
    agent = {"type": "DDDQN", "action_fineness": 2, "action_combined": True}
    table = resolve(parse_config(changed("agent", agent))).action_table
    assert table is not None
    assert np.array_equal(table.actions, action_table(2, combined=True))
    assert resolve(parse_config(clean())).action_table is None  # SAC acts in the space itself


def test_other_environments_are_for_one_player() -> None:
    data = clean()
    data["curriculum"]["phases"] = [
        {"name": "swing", "transitions": 10, "environment": {"id": "Acrobot-v1"}, "opponent": {"type": "none"}}
    ]
    config = parse_config(data)
    assert not config.curriculum.phases[0].environment.is_known_game
    data["agent"] = {"type": "DDDQN"}
    assert resolve(parse_config(data)).action_table is None
