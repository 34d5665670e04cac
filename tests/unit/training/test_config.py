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
from pydantic import BaseModel
from tests.unit.training.written import changed, clean
from tests.waiting import PATIENCE_S

from envfleet.agents import SACConfig
from envfleet.envs.games import known_game
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


def test_updates_are_per_transition_unless_asked_for_per_round() -> None:
    assert parse_config(clean()).training.updates_per_step == 1.0
    training = parse_config(changed("training", "updates_per_round", 4)).training
    assert training.updates_per_round == 4.0


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


@pytest.mark.parametrize("value", [[1], {}, "x", True, 0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["max_minutes", "max_transitions"])
def test_limits_of_a_run_are_numbers_above_0(name: str, value: Any) -> None:
    limits: dict[str, Any] = {name: value}
    with pytest.raises(InvalidArgument, match=rf"^{name}=.*: pass a number above 0, or leave it out"):
        RunOptions(**limits)
    limits = {name: np.int64(2)}
    assert getattr(RunOptions(**limits), name) == 2


def test_parsing_imports_no_game_and_no_agent() -> None:
    program = (
        "import sys; from envfleet.training.config import read_config\n"
        "read_config('curriculum_base')\n"
        "assert not [name for name in sys.modules if name.startswith(('envfleet.envs.', 'envfleet.agents', 'torch'))"
        " and name != 'envfleet.envs.registration']"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
