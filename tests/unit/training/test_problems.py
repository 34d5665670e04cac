"""Errors about mistakes in configuration files."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.training.written import changed, clean, with_agent
from tests.waiting import PATIENCE_S

from envfleet.errors import InvalidArgument
from envfleet.training.config import parse_config, read_config
from envfleet.training.plan import resolve


def one_player(env: str, **kwargs: Any) -> dict[str, Any]:
    phase = {"name": "a", "episodes": 1, "environment": {"id": env, "kwargs": kwargs}}
    return {"curriculum": {"phases": [phase]}, "agent": {"type": "DDDQN"}}


GAMES = ("curriculum", "phases", 1)
MISTAKES: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "opponent": (
        lambda: changed(*GAMES, "opponent", "opponents", 1, "type", "strong"),
        r"curriculum.phases\[1\].opponent.opponents\[1\].type is 'strong', expected one of 'none', .*'self_play'",
    ),
    "key of an opponent": (
        lambda: changed(*GAMES, "opponent", {"type": "snapshots", "matching": "latest"}),
        r"curriculum.phases\[1\].opponent.matching is an unknown key, accepted are .*: did you mean matchmaking\?",
    ),
    "value of an opponent": (
        lambda: changed(*GAMES, "opponent", {"type": "snapshots", "matchmaking": "best"}),
        r"curriculum.phases\[1\].opponent.matchmaking is 'best': expected 'uniform', 'latest', 'prioritized' or",
    ),
    "opponent without a type": (
        lambda: changed(*GAMES, "opponent", {}),
        r"curriculum.phases\[1\].opponent.type is missing, expected one of 'none'",
    ),
    "weights": (
        lambda: changed(*GAMES, "opponent", "opponents", [{"type": "basic_weak", "weight": 0}]),
        r"curriculum.phases\[1\] has a mixture of opponents with all weights 0",
    ),
    "weight without end": (
        lambda: changed(*GAMES, "opponent", "opponents", [{"type": "basic_weak", "weight": float("inf")}]),
        r"curriculum.phases\[1\].opponent.opponents\[0\].weight is inf: expected a finite number",
    ),
    "weight of a mode without end": (
        lambda: changed(*GAMES, "environment", {"mixture": [{"mode": "NORMAL", "weight": float("inf")}]}),
        r"curriculum.phases\[1\].environment.mixture\[0\].weight is inf: expected a finite number",
    ),
    "buffer below a batch": (
        lambda: changed("agent", {"type": "SAC", "hyperparameters": {"capacity": 10}}),
        r"agent.hyperparameters.capacity is 10, expected at least batch_size, \d+: updates begin once",
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
        r"curriculum.phases\[1\].environment has 'player_one' in kwargs, where hockey accepts keep_mode and starter",
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
    "two environments": (
        lambda: changed(*GAMES, "environment", {"id": "Pendulum-v1"}),
        r"curriculum uses 'hockey' and, in phase 'games', 'Pendulum-v1', expected one id in all phases",
    ),
    "two keep_modes": (
        lambda: changed(*GAMES, "environment", {"kwargs": {"keep_mode": False}}),
        r"curriculum.phases\[1\].environment.kwargs.keep_mode is False, but True in the first phase, expected one",
    ),
    "shaping term": (
        lambda: changed("curriculum", "phases", 0, "reward_shaping", {"CLOSENES_START": 1}),
        r"curriculum.phases\[0\].reward_shaping.CLOSENES_START is an unknown key, .*: did you mean CLOSENESS_START\?",
    ),
    "numbered actions": (
        lambda: one_player("Pendulum-v1"),
        r"agent.type is 'DDDQN', which .* but 'Pendulum-v1' has continuous actions, Box.*SAC",
    ),
    "numbered actions of a kernel": (
        lambda: one_player("envfleet/Pendulum-v1"),
        r"agent.type is 'DDDQN', .* but 'envfleet/Pendulum-v1' has continuous actions",
    ),
    "numbered actions of nothing": (
        lambda: one_player("Pendulum-v1", wind=3),
        r"wind=3 is neither an option of make\(\) nor a keyword of Pendulum-v1",
    ),
    "opponent of one player": (
        lambda: one_player("CartPole-v1") | {"curriculum": {"phases": [
            {"name": "a", "episodes": 1, "environment": {"id": "CartPole-v1"}, "opponent": {"type": "random"}}]}},
        r"curriculum.phases\[0\] has opponent, which only two-player games have, but 'CartPole-v1' is for one player",
    ),
    "one name twice": (
        lambda: changed(*GAMES, "name", "shooting"),
        r"curriculum has several phases called 'shooting'",
    ),
    "a number for a list": (
        lambda: with_agent("SAC", hidden=64),
        r"agent.hyperparameters.hidden is 64: expected a valid list$",
    ),
    "a number for an object": (
        lambda: changed(*GAMES, "promote_at", 0.7),
        r"curriculum.phases\[1\].promote_at is 0.7: expected a valid object$",
    ),
    "misspelt key": (
        lambda: changed("training", "update_per_step", 1),
        r"training.update_per_step is an unknown key, accepted are .*: did you mean updates_per_step\?",
    ),
    "updates": (
        lambda: changed("training", {"updates_per_step": 2, "updates_per_round": 1}),
        r"training has updates_per_step and updates_per_round, expected only one",
    ),
    "nothing learns": (
        lambda: {key: value for key, value in clean().items() if key != "agent"},
        r"agent is missing",
    ),
    "agent": (lambda: with_agent("A2C"), r"agent.type is 'A2C', expected one of 'SAC', 'TD3', 'DDDQN', 'PPO'"),
    "hyperparameter": (
        lambda: with_agent("SAC", clip=0.2),
        r"agent.hyperparameters.clip is an unknown key, accepted are .*gamma",
    ),
    "its value": (
        lambda: with_agent("SAC", gamma=1.5),
        r"agent.hyperparameters: SACConfig.gamma=1.5: pass a number from 0 to 1",
    ),
    "its type": (
        lambda: with_agent("SAC", gamma="high"),
        r"agent.hyperparameters.gamma is 'high': expected a valid number",
    ),
    "warm-up": (
        lambda: with_agent("SAC", warmup=5),
        r"agent.hyperparameters.warmup is set elsewhere: write training.warmup_steps",
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
    with pytest.raises(InvalidArgument, match=f"^{re.escape('runs/mine.json: ')}{message}"):
        resolve(parse_config(make(), "runs/mine.json"), source="runs/mine.json")


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
    with pytest.raises(InvalidArgument, match=r"run\.json is not JSON \(Expecting value: line 1"):
        read_config(path)
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(InvalidArgument, match=r"run\.json holds a list, expected an object"):
        read_config(path)


def test_a_mistake_is_told_without_torch() -> None:
    program = (
        "import sys; from envfleet.cli.app import app\n"
        "try: app(['train', 'nosuch.json'])\n"
        "except SystemExit as end: assert end.code == 2\n"
        "assert not {'torch', 'polars', 'matplotlib'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=PATIENCE_S)


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
