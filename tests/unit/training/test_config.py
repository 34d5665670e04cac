"""Configuration files: what they mean."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from gymnasium.spaces import Box
from pydantic import BaseModel
from tests.unit.training.written import changed, clean, with_agent

from envfleet import registry
from envfleet.agents import TD3, SACConfig, TD3Config, load_agent
from envfleet.envs.games import known_game
from envfleet.envs.hockey import action_table
from envfleet.errors import InvalidArgument
from envfleet.training.config import (
    AgentSection,
    Hyperparameters,
    RunConfig,
    RunOptions,
    Training,
    find_config,
    parse_config,
    read_config,
    shipped_names,
)
from envfleet.training.phases import Environment, Phase, Promotion, RewardBonus, RewardShaping, shares_of
from envfleet.training.plan import resolve
from envfleet.training.schema import json_schema

HOCKEY = known_game("hockey")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "training.md"


def test_a_file_means_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(clean() | {"training": {"warmup_steps": 400}}), encoding="utf-8")
    config = read_config(path)
    shooting, games = config.curriculum.phases
    assert (shooting.environment.mode_shares, games.environment.mode_shares) == (
        {"TRAIN_SHOOTING": 1.0},
        {"TRAIN_DEFENSE": 0.25, "NORMAL": 0.75},
    )
    assert [(entry.type, share) for entry, share in shares_of(games.opponent)] == [
        ("basic_weak", 0.25),
        ("snapshots", 0.75),
    ]
    assert shooting.reward_shaping is not None
    assert shooting.reward_shaping.weights == {"CLOSENESS_START": 25.0, "TOUCH_FINAL": 1.5}
    filled = resolve(config).phases[0]
    assert filled.reward_shaping is not None
    weights = filled.reward_shaping.weights
    assert (weights["CLOSENESS_START"], weights["DIRECTION_FINAL"]) == (25.0, 2.0)
    assert filled.environment.kwargs == {"keep_mode": True, "starter": 0}
    assert (shooting.clear_buffer, games.clear_buffer) == (True, False)
    assert resolve(config).agent_config == SACConfig(
        learning_rate=0.0005, batch_size=64, warmup=400, gamma=0.98, hidden=(32, 64)
    )


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_configurations_are_valid_and_round_trip(name: str) -> None:
    path = find_config(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = read_config(name)
    assert config == read_config(path)
    filled = resolve(config).config
    for one in (config, filled):
        assert parse_config(one.model_dump(mode="json")) == one
        assert parse_config(json.loads(one.model_dump_json())) == one
    assert resolve(filled).config == filled
    jsonschema_rs.validate(json_schema(), json.loads(path.read_text(encoding="utf-8")))


def test_shipped_configurations_are_in_the_documentation() -> None:
    table = PAGE.read_text(encoding="utf-8").split("## Configurations")[1].split("###")[0]
    assert [name for name in shipped_names() if f"`{name}`" not in table] == []
    assert {"quickstart", "curriculum_base", "curriculum_simple", "ppo_kernel"} <= set(shipped_names())


def test_a_bare_word_names_a_configuration_all_else_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quickstart").write_text(json.dumps(clean()), encoding="utf-8")
    assert read_config("./quickstart") == read_config(Path("quickstart")) == parse_config(clean())
    assert read_config("quickstart").agent.type == "PPO"
    unknown = "is 'quikstart', expected one of curriculum_base, .*, quickstart, .*: write ./quikstart for a file"
    with pytest.raises(InvalidArgument, match=unknown):
        read_config("quikstart")


def test_the_shipped_schema_matches_the_code() -> None:
    schema = json.loads(find_config("sac").with_name("schema.json").read_text(encoding="utf-8"))
    assert schema == json_schema()
    with pytest.raises(jsonschema_rs.ValidationError, match="episode"):
        jsonschema_rs.validate(schema, changed("curriculum", "phases", 0, "episode", 1))


class Quieter(TD3):
    """An agent of a user's own."""

    name = "Quieter"


def test_an_agent_that_is_registered_is_configured_and_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(registry.AGENTS, "Quieter", f"{__name__}:Quieter")
    given = with_agent("Quieter", exploration_noise=0.5)
    assert json_schema()["$defs"]["AgentSection"]["properties"]["type"]["anyOf"][0]["enum"][-1] == "Quieter"
    config = resolve(parse_config(given)).agent_config
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


def test_updates_are_per_transition_unless_asked_for_per_round() -> None:
    assert parse_config(clean()).training.updates_per_step == 1.0
    training = parse_config(changed("training", "updates_per_round", 4)).training
    assert training.updates_per_round == 4.0


def test_other_environments_are_for_one_player() -> None:
    data = clean()
    data["curriculum"]["phases"] = [
        {"name": "swing", "transitions": 10, "environment": {"id": "Acrobot-v1"}, "opponent": {"type": "none"}}
    ]
    config = parse_config(data)
    assert not config.curriculum.phases[0].environment.is_known_game
    data["agent"] = {"type": "DDDQN"}
    assert resolve(parse_config(data)).action_table is None


SECTIONS: dict[str, type[BaseModel]] = {
    "The file": RunConfig,
    "curriculum.phases[]": Phase,
    "curriculum.phases[].environment": Environment,
    "curriculum.phases[].promote_at": Promotion,
    "curriculum.phases[].reward_shaping": RewardShaping,
    "curriculum.phases[].reward_bonus": RewardBonus,
    "hyperparameters": Hyperparameters,
    "training": Training,
    "agent": AgentSection,
}


@pytest.mark.parametrize("title", SECTIONS)
def test_every_key_and_its_default_are_in_the_documentation(title: str) -> None:
    section = PAGE.read_text(encoding="utf-8").split(f"### {title}\n")[1].split("\n#")[0]
    documented: dict[str, str] = {}
    for keys, defaults in re.findall(r"^\| (`[\w`, .]+`) \| ([^|]+) \|", section, re.MULTILINE):
        names = [key.strip("` ") for key in keys.split(",")]
        documented |= dict(zip(names, [one.strip("` ") for one in defaults.split(",")], strict=True))
    if title.endswith("reward_shaping"):
        for term, (_, *weights, _) in HOCKEY.terms.items():
            assert [float(documented.pop(f"{term}_{when}")) for when in ("START", "FINAL")] == weights
    for name, field in SECTIONS[title].model_fields.items():
        default = "required" if field.is_required() else field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            assert documented.pop(name) == "below"
        else:
            shown = default if isinstance(default, str) else json.dumps(default).removesuffix(".0")
            assert documented.pop(name) == shown, name
    assert not {name for name in documented if "." not in name}


def test_configurations_do_not_change() -> None:
    config = parse_config(clean())
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 1
    assert isinstance(config, RunConfig)


def test_all_mistakes_of_a_section_are_told_together() -> None:
    phase = {"nam": "x", "transitions": -4, "opponent": {"type": "none", "weigth": 1}}
    with pytest.raises(InvalidArgument, match="has 5 mistakes") as caught:
        parse_config({"curriculum": {"phases": [phase]}, "agent": {"type": "SAC", "typ": "SAC"}})
    message = str(caught.value)
    for place in (
        "phases[0].nam is an unknown key",
        "opponent.weigth is",
        "name is missing",
        "transitions is -4",
        "did you mean type?",
    ):
        assert place in message


@pytest.mark.parametrize("value", [[1], {}, "x", True, 0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["max_minutes", "max_transitions"])
def test_limits_of_a_run_are_numbers_above_0(name: str, value: Any) -> None:
    limits: dict[str, Any] = {name: value}
    with pytest.raises(InvalidArgument, match=rf"^{name}=.*: pass a number above 0, or leave it out"):
        RunOptions(**limits)
    limits = {name: np.int64(2)}
    assert getattr(RunOptions(**limits), name) == 2


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


def test_parsing_imports_no_game_and_no_agent() -> None:
    program = (
        "import sys; from envfleet.training.config import read_config\n"
        "read_config('curriculum_base')\n"
        "assert not [name for name in sys.modules if name.startswith(('envfleet.envs.', 'envfleet.agents', 'torch'))"
        " and name != 'envfleet.envs.registration']"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
