"""Self-play from both sides: counters, and resuming after an interruption."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from envfleet.training import RunOptions, Trainer
from envfleet.training.config import RunConfig, parse_config
from envfleet.training.plan import resolve

pytestmark = pytest.mark.usefixtures("no_plots")

MYSELF = {"type": "self_play"}
PPO: dict[str, Any] = {"type": "PPO", "hyperparameters": {"hidden": [8], "num_minibatches": 1, "num_epochs": 1}}
SAC: dict[str, Any] = {"type": "SAC", "hyperparameters": {"hidden": [8], "noise_exponent": 1.0, "noise_length": 300}}
MIXED = {"type": "weighted_mixture", "opponents": [MYSELF, {"type": "basic_weak"}, {"type": "snapshots"}]}


def config_of(opponent: dict[str, Any], agent: dict[str, Any] = PPO, **more: Any) -> RunConfig:
    training = {
        "warmup_steps": 40, "updates_per_step": 0.5, "rollout_steps": 16, "eval_frequency": None, "eval_games": 1,
        "eval_weak_opponent": False, "checkpoint_frequency": None, "pool": {"snapshot_every": 100}, **more,
    }  # fmt: skip
    phase = {"name": "a", "transitions": 160, "environment": {"mode": "TRAIN_SHOOTING"}, "opponent": opponent}
    hyperparameters = {} if agent is PPO else {"batch_size": 8}
    return parse_config(
        {"curriculum": {"phases": [phase]}, "training": training, "hyperparameters": hyperparameters, "agent": agent}
    )


@contextlib.contextmanager
def opened(config: RunConfig) -> Any:
    with contextlib.closing(Trainer(resolve(config, RunOptions(num_envs=2)))) as trainer:
        yield trainer


def weights_of(trainer: Trainer) -> list[torch.Tensor]:
    return [tensor for network in trainer.agent.weights().values() for tensor in network.values()]


@pytest.mark.parametrize(
    ("opponent", "more", "transitions"),
    [
        (MYSELF, {}, 4),
        ({**MYSELF, "deterministic": True}, {}, 2),
        (MYSELF, {"learn_from_both_sides": False}, 2),
        ({"type": "snapshots"}, {}, 2),
        ({"type": "basic_strong"}, {}, 2),
    ],
    ids=["itself", "deterministic", "one-side", "snapshots", "scripted"],
)
def test_a_round_of_two_games_counts_what_is_learned_from(
    opponent: dict[str, Any], more: dict[str, Any], transitions: int
) -> None:
    with opened(config_of(opponent, SAC, **more)) as trainer:
        trainer.begin()
        trainer.round()
        assert trainer.transitions == trainer.agent.num_transitions == len(trainer.agent.replay) == transitions


def test_updates_and_phase_lengths_count_both_sides() -> None:
    with opened(config_of(MYSELF, SAC)) as trainer:
        trainer.run()
        assert (trainer.transitions, trainer.agent.num_transitions, trainer.agent.num_updates) == (160, 160, 60)
    with opened(config_of(MYSELF, PPO)) as trainer:
        trainer.run()
        assert (trainer.transitions, trainer.agent.num_transitions, trainer.agent.num_updates) == (160, 160, 3)


DDDQN = {"type": "DDDQN", "hyperparameters": {"hidden": [8], "batch_size": 8}}


@pytest.mark.parametrize("agent", [DDDQN, PPO], ids=["DDDQN", "PPO"])
def test_sides_of_others_hold_observations_of_the_space(agent: dict[str, Any]) -> None:
    mixed = {"type": "weighted_mixture", "opponents": [MYSELF, {"type": "random"}, {"type": "snapshots"}]}
    phase = {"name": "a", "transitions": 90, "environment": {"id": "tests.unit.training.duel:Numbered"}}
    training = {"warmup_steps": 10, "rollout_steps": 8, "eval_frequency": 50, "eval_games": 3}
    data = {"curriculum": {"phases": [phase | {"opponent": mixed}]}, "training": training, "agent": agent}
    with opened(parse_config(data)) as trainer:
        assert trainer.run() == "completed"
        assert trainer.agent.num_updates > 0


@pytest.mark.parametrize("kind", ["none", "random", "self_play"])
def test_the_side_of_nobody_takes_an_action_of_the_space(kind: str) -> None:
    entries = [{"type": kind}, {"type": "none"}]
    phase = {
        "name": "a", "transitions": 60, "environment": {"id": "tests.unit.training.duel:Shifted"},
        "opponent": {"type": "weighted_mixture", "opponents": entries},
    }  # fmt: skip
    training = {"rollout_steps": 8, "eval_frequency": None, "eval_games": 3}
    with opened(parse_config({"curriculum": {"phases": [phase]}, "training": training, "agent": PPO})) as trainer:
        assert trainer.run() == "completed"


@pytest.mark.parametrize("agent", [SAC, PPO], ids=["SAC", "PPO"])
def test_a_trainer_goes_on_to_the_last_bit(agent: dict[str, Any]) -> None:
    config = config_of(MIXED, agent)
    with opened(config) as whole:
        whole.run()
    with opened(config) as first, opened(config) as second:
        first.begin()
        while first.transitions < 90:
            first.round()
        second.load_state_dict(first.state_dict())
        second.run()
        assert second.transitions == whole.transitions
        assert all(map(torch.equal, weights_of(whole), weights_of(second)))
