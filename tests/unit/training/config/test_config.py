"""Configuration files: what they mean, what the public ones become, and what is said of mistakes."""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from pydantic import BaseModel

from envfleet.agents import DDDQNConfig, PPOConfig, SACConfig, TD3Config
from envfleet.envs.hockey import action_table
from envfleet.errors import InvalidArgument
from envfleet.training.config import (
    AgentSection,
    Environment,
    Hyperparameters,
    Phase,
    Promotion,
    RewardBonus,
    RewardShaping,
    RunConfig,
    Training,
    json_schema,
    parse_config,
    read_config,
    shares_of,
)

CONFIGS = Path(__file__).resolve().parents[4] / "configs"
SHIPPED = sorted(path for path in CONFIGS.glob("*.json") if path.name != "schema.json")

# Written as older files are, with the keys that nothing there ever used.
PUBLIC: dict[str, Any] = {
    "curriculum": {
        "phases": [
            {
                "name": "shooting",
                "episodes": 100,
                "environment": {"mode": "TRAIN_SHOOTING", "keep_mode": True},
                "opponent": {"type": "none", "weight": 1.0},
                "reward_shaping": {"N": 60, "K": 40, "CLOSENESS_START": 25, "TOUCH_FINAL": 1.5},
            },
            {
                "name": "games",
                "episodes": 200,
                "environment": {
                    "mixture": [{"mode": "TRAIN_DEFENSE", "weight": 0.5}, {"mode": "NORMAL", "weight": 1.5}]
                },
                "opponent": {
                    "type": "weighted_mixture",
                    "weight": 1.0,
                    "checkpoint": None,
                    "deterministic": True,
                    "opponents": [
                        {"type": "basic_weak", "weight": 0.5},
                        {"type": "archive", "weight": 1.5, "skill_range": 50},
                    ],
                },
                "reward_shaping": None,
                "clear_buffer": False,
            },
        ]
    },
    "hyperparameters": {"learning_rate": 0.0005, "batch_size": 64},
    "training": {"max_episode_steps": 500, "updates_per_step": 1, "warmup_steps": 400, "checkpoint_save_freq": 100},
    "agent": {
        "type": "SAC",
        "hyperparameters": {
            "discount": 0.98,
            "tau": 0.01,
            "alpha": 0.2,
            "learn_alpha": True,
            "noise": "pink",
            "max_episode_steps": 250,
            "hidden_dim": [32, 64],
        },
    },
}


def clean() -> dict[str, Any]:
    """The same without keys that are warned of."""
    data = copy.deepcopy(PUBLIC)
    data["training"] = {}
    del data["curriculum"]["phases"][1]["opponent"]["opponents"][1]["skill_range"]
    return data


def changed(*path: Any) -> dict[str, Any]:
    """`clean`, with the last of these put where the others lead."""
    data = clean()
    *way, last, value = path
    place: Any = data
    for key in way:
        place = place[key]
    place[last] = value
    return data


def with_agent(kind: str, **hyperparameters: Any) -> dict[str, Any]:
    return changed("agent", {"type": kind, "hyperparameters": hyperparameters}) | {"hyperparameters": {}}


def test_a_public_file_is_read_and_unused_keys_are_named(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(PUBLIC), encoding="utf-8")
    with pytest.warns(UserWarning, match="has no effect") as caught:
        config = read_config(path)
    said = sorted(str(one.message).removeprefix(f"{path}: ").split("=")[0] for one in caught)
    assert said == [
        "curriculum.phases[1].opponent.opponents[1].skill_range",
        "training.checkpoint_save_freq",
        "training.max_episode_steps",
    ]
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
    assert (shooting.reward_shaping.CLOSENESS_START, shooting.reward_shaping.DIRECTION_FINAL) == (25.0, 2.0)
    assert (shooting.clear_buffer, games.clear_buffer) == (True, False)
    assert config.agent_config() == SACConfig(
        learning_rate=0.0005, batch_size=64, warmup=400, gamma=0.98, target_tau=0.01, initial_temperature=0.2,
        noise_exponent=1.0, noise_length=250, hidden=(32, 64),
    )  # fmt: skip


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_configurations_are_valid_and_so_is_what_is_written_of_them(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = read_config(path)
    assert parse_config(config.model_dump(mode="json")) == config
    assert parse_config(json.loads(config.model_dump_json())) == config
    jsonschema_rs.validate(json_schema(), json.loads(path.read_text(encoding="utf-8")))


def test_the_shipped_ones_are_the_usual_ones() -> None:
    names = {"curriculum_base", "curriculum_simple", "sac", "dddqn", "td3", "ppo_kernel", "quickstart"}
    assert {path.stem for path in SHIPPED} >= names


def test_the_shipped_schema_is_that_of_the_code_and_refuses_what_the_code_refuses() -> None:
    schema = json.loads((CONFIGS / "schema.json").read_text(encoding="utf-8"))
    assert schema == json_schema()
    with pytest.raises(jsonschema_rs.ValidationError, match="episode"):
        jsonschema_rs.validate(schema, changed("curriculum", "phases", 0, "episode", 1))


AGENTS: dict[str, tuple[dict[str, Any], Any]] = {
    "DDDQN": (
        {"hidden_dim": 128, "target_update_freq": 50, "eps": 0.3, "eps_min": 0.1, "use_huber_loss": True},
        DDDQNConfig(
            hidden=(128, 128), target_period=50, target_tau=1.0, epsilon_start=0.3, epsilon_end=0.1, warmup=10_000
        ),
    ),
    "DDQN_PER": (
        {"per_alpha": 0.5, "per_beta": 0.3, "buffer_size": 1000},
        DDDQNConfig(prioritised=True, priority_alpha=0.5, priority_beta=0.3, capacity=1000, warmup=10_000),
    ),
    "TD3": (
        {"expl_noise": 0.2, "policy_noise": 0.3, "noise_clip": 0.4, "policy_freq": 3, "max_action": 1.0},
        TD3Config(
            exploration_noise=0.2, target_noise=0.3, target_noise_clip=0.4, policy_delay=3, warmup=10_000
        ),
    ),
    "PPO": (
        {"n_epochs": 7, "activation": "relu", "hidden_dim": [8]},
        PPOConfig(num_epochs=7, activation="relu", hidden=(8,)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", AGENTS)
def test_names_of_the_public_files_mean_ours(kind: str) -> None:
    given, expected = AGENTS[kind]
    assert parse_config(with_agent(kind, **given)).agent_config() == expected


def test_dddqn_chooses_from_the_table_it_asks_for() -> None:
    agent = {"type": "DDDQN", "action_fineness": 2, "action_combined": True}
    table = parse_config(changed("agent", agent)).action_table()
    assert table is not None
    assert np.array_equal(table.actions, action_table(2, combined=True))
    assert parse_config(clean()).action_table() is None  # SAC acts in the space itself


def test_updates_are_per_transition_unless_asked_for_per_round() -> None:
    assert parse_config(clean()).training.updates_per_step == 1.0
    training = parse_config(changed("training", "updates_per_round", 4)).training
    assert (training.updates_per_step, training.updates_per_round) == (None, 4.0)


def test_other_environments_are_for_one_player() -> None:
    data = clean()
    data["curriculum"]["phases"] = [
        {"name": "swing", "transitions": 10, "environment": {"id": "Pendulum-v1"}, "opponent": {"type": "none"}}
    ]
    config = parse_config(data)
    assert not config.curriculum.phases[0].environment.is_hockey
    data["agent"] = {"type": "DDDQN"}
    assert parse_config(data).action_table() is None


GAMES = ("curriculum", "phases", 1)
MISTAKES: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "opponent": (
        lambda: changed(*GAMES, "opponent", "opponents", 1, "type", "strong"),
        r"curriculum.phases\[1\].opponent.opponents\[1\].type is 'strong', expected one of 'none', .*'self_play'",
    ),
    "key of an opponent": (
        lambda: changed(*GAMES, "opponent", {"type": "snapshots", "matching": "latest"}),
        r"curriculum.phases\[1\].opponent.matching is no key here, accepted are .*: did you mean matchmaking\?",
    ),
    "value of an opponent": (
        lambda: changed(*GAMES, "opponent", {"type": "snapshots", "matchmaking": "best"}),
        r"curriculum.phases\[1\].opponent.matchmaking is 'best': expected 'uniform', 'latest', 'prioritised' or",
    ),
    "opponent without a type": (
        lambda: changed(*GAMES, "opponent", {}),
        r"curriculum.phases\[1\].opponent.type is missing, expected one of 'none'",
    ),
    "distribution": (
        lambda: changed(*GAMES, "opponent", {"type": "archive", "distribution": {"pfsp": 1.0}}),
        r"curriculum.phases\[1\].opponent.distribution is .* write a weighted_mixture",
    ),
    "weights": (
        lambda: changed(*GAMES, "opponent", "opponents", [{"type": "basic_weak", "weight": 0}]),
        r"curriculum.phases\[1\] has a mixture of opponents whose weights are all 0",
    ),
    "mode": (
        lambda: changed(*GAMES, "environment", {"mode": "SHOOTING"}),
        r"curriculum.phases\[1\].environment.mode is 'SHOOTING': expected 'NORMAL', 'TRAIN_SHOOTING'",
    ),
    "two modes": (
        lambda: changed(*GAMES, "environment", "mode", "NORMAL"),
        r"curriculum.phases\[1\].environment has a mode and a mixture",
    ),
    "kwargs of hockey": (
        lambda: changed(*GAMES, "environment", "kwargs", {"player_one": 2}),
        r"curriculum.phases\[1\].environment has 'player_one' in kwargs, where hockey takes starter alone",
    ),
    "starter": (
        lambda: changed(*GAMES, "environment", "kwargs", {"starter": 3}),
        r"curriculum.phases\[1\].environment has starter=3 in kwargs, expected 1 or 2, or 0",
    ),
    "text for a number": (
        lambda: changed(*GAMES, "episodes", "200"),
        r"curriculum.phases\[1\].episodes is '200': expected a valid integer",
    ),
    "no length": (
        lambda: changed(*GAMES, "episodes", None),
        r"curriculum.phases\[1\] has none of episodes and transitions",
    ),
    "two lengths": (
        lambda: changed(*GAMES, "transitions", 5),
        r"curriculum.phases\[1\] has both of episodes and transitions",
    ),
    "win discount": (
        lambda: changed(*GAMES, "reward_bonus", {"WIN_DISCOUNT_START": 0.92}),
        r"curriculum.phases\[1\].reward_bonus.WIN_DISCOUNT_START is 0.92, but the bonus is paid for the step that wins",
    ),
    "two environments": (
        lambda: changed(*GAMES, "environment", {"keep_mode": False}),
        r"curriculum phase 'games' plays 'hockey' with keep_mode=False, phase 'shooting' .* expected the same in all",
    ),
    "opponent of one player": (
        lambda: changed(*GAMES, "environment", {"id": "Pendulum-v1"}),
        r"curriculum.phases\[1\] has the opponent 'weighted_mixture', but 'Pendulum-v1' is for one player",
    ),
    "one name twice": (
        lambda: changed(*GAMES, "name", "shooting"),
        r"curriculum several phases are called 'shooting'",
    ),
    "misspelt key": (
        lambda: changed("training", "update_per_step", 1),
        r"training.update_per_step is no key here, accepted are .*: did you mean updates_per_step\?",
    ),
    "updates": (
        lambda: changed("training", {"updates_per_step": 1, "updates_per_round": 1}),
        r"training has updates_per_step and updates_per_round, expected one of both",
    ),
    "train_freq": (
        lambda: changed("training", {"train_freq": 4, "updates_per_step": 2}),
        r"training.train_freq is 4: write updates_per_step, .* such as 0.5",
    ),
    "nothing learns": (
        lambda: {key: value for key, value in clean().items() if key != "agent"},
        r"agent is missing",
    ),
    "agent": (lambda: with_agent("TDMPC2"), r"agent.type is 'TDMPC2': expected 'SAC', 'TD3', 'DDDQN' or 'PPO'"),
    "hyperparameter": (
        lambda: with_agent("SAC", clip=0.2),
        r"agent.hyperparameters.clip is no hyperparameter of SAC \(clip is known to PPO\), accepted are .*gamma",
    ),
    "its value": (
        lambda: with_agent("SAC", discount=1.5),
        r"agent.hyperparameters: SACConfig.gamma=1.5: pass a number from 0 to 1",
    ),
    "its type": (
        lambda: with_agent("SAC", gamma="high"),
        r"agent.hyperparameters.gamma is 'high': expected a valid number",
    ),
    "under two names": (
        lambda: with_agent("SAC", gamma=0.9, discount=0.9),
        r"agent.hyperparameters.discount sets gamma, which another hyperparameter has set",
    ),
    "warm-up": (
        lambda: with_agent("SAC", warmup=5),
        r"agent.hyperparameters.warmup belongs elsewhere: write training.warmup_steps",
    ),
    "what is always so": (
        lambda: with_agent("SAC", learn_alpha=False),
        r"agent.hyperparameters.learn_alpha is False, expected True: the temperature of SAC is always learned",
    ),
    "colour": (
        lambda: with_agent("SAC", noise="blue"),
        r"agent.hyperparameters.noise is 'blue', expected one of normal, white, pink, red",
    ),
    "eps_decay": (
        lambda: with_agent("DDDQN", eps_decay=0.999),
        r"agent.hyperparameters.eps_decay is 0.999, a factor, .* write epsilon_transitions",
    ),
    "twice, and not the same": (
        lambda: changed("agent", "hyperparameters", {"learning_rate": 1.0}),
        r"hyperparameters.learning_rate is 0.0005, agent.hyperparameters.learning_rate 1.0: leave one out",
    ),
    "batches of PPO": (
        lambda: changed("agent", {"type": "PPO"}),
        r"hyperparameters.batch_size is 64, but PPO has none: write agent.hyperparameters.num_minibatches",
    ),
    "actions by number": (
        lambda: changed("agent", {"type": "SAC", "action_fineness": 2}),
        r"agent has an action_fineness or action_combined, but SAC does not choose",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named_with_file_key_and_what_is_accepted(name: str) -> None:
    make, message = MISTAKES[name]
    with pytest.raises(InvalidArgument, match=f"^{re.escape('configs/mine.json: ')}{message}"):
        parse_config(make(), "configs/mine.json")


def test_several_mistakes_are_told_at_once() -> None:
    data = changed("training", {"warmup_steps": -1, "reward_scale": 0})
    with pytest.raises(InvalidArgument) as caught:
        parse_config(data, "mine.json")
    assert str(caught.value).splitlines() == [
        "mine.json has 2 mistakes:",
        "- training.warmup_steps is -1: expected greater than or equal to 0",
        "- training.reward_scale is 0: expected greater than 0",
    ]


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with pytest.raises(InvalidArgument, match=r"run\.json cannot be read \(No such file"):
        read_config(path)
    path.write_text('{"curriculum": ', encoding="utf-8")
    with pytest.raises(InvalidArgument, match=r"run\.json is no JSON \(Expecting value: line 1"):
        read_config(path)
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(InvalidArgument, match=r"run\.json holds a list, expected an object"):
        read_config(path)


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
    page = (CONFIGS.parent / "docs" / "training.md").read_text(encoding="utf-8")
    section = page.split(f"### {title}\n")[1].split("\n#")[0]
    told: dict[str, str] = {}
    for keys, defaults in re.findall(r"^\| (`[\w`, .]+`) \| ([^|]+) \|", section, re.MULTILINE):
        names = [key.strip("` ") for key in keys.split(",")]
        told |= dict(zip(names, [one.strip("` ") for one in defaults.split(",")], strict=True))
    for name, field in SECTIONS[title].model_fields.items():
        default = "required" if field.is_required() else field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            assert told.pop(name) == "below"
        else:
            shown = default if isinstance(default, str) else json.dumps(default).removesuffix(".0")
            assert told.pop(name) == shown, name
    assert not {name for name in told if "." not in name}


def test_configurations_do_not_change() -> None:
    config = parse_config(clean())
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 1
    assert isinstance(config, RunConfig)
