"""Files of the pipeline that `rl_hockey` stands for, as far as they are described: each is read, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rl_hockey.common.training.older_files import modernise, read_older

from envfleet.agents import DDDQNConfig, SACConfig, TD3Config
from envfleet.errors import InvalidArgument
from envfleet.training.config import RunConfig, agent_config, parse_config
from envfleet.training.phases import shares_of

SHAPING = {
    "N": 600, "K": 400, "CLOSENESS_START": 20.0, "CLOSENESS_FINAL": 1.5, "TOUCH_START": 15.0, "TOUCH_FINAL": 1.0,
    "DIRECTION_START": 0.0, "DIRECTION_FINAL": 2.0,
}  # fmt: skip
BONUS = {
    "N": 0, "K": 2000, "WIN_BONUS_START": 10.0, "WIN_BONUS_FINAL": 1.0, "WIN_DISCOUNT_START": 0.92,
    "WIN_DISCOUNT_FINAL": 0.92,
}  # fmt: skip
TRAINING = {
    "warmup_steps": 10000, "updates_per_step": 1, "train_freq": 1, "eval_frequency": 100000,
    "checkpoint_frequency": 100000, "reward_scale": 1.0, "max_episode_steps": 500, "checkpoint_save_freq": 100,
    "resource_log_freq": 10, "episode_resource_window": 10, "episode_resource_samples": 5,
}  # fmt: skip
SAC = {
    "learning_rate": 1e-3, "batch_size": 256, "discount": 0.99, "tau": 0.005, "alpha": 0.2, "learn_alpha": True,
    "noise": "pink", "max_episode_steps": 250, "hidden_dim": [256, 256], "buffer_max_size": 1000000,
}  # fmt: skip
TD3 = {
    "expl_noise": 0.1, "policy_noise": 0.2, "noise_clip": 0.5, "policy_freq": 2, "priority_replay": False,
    "normalize_obs": False, "max_action": 1.0, "discount": 0.99, "tau": 0.005,
}  # fmt: skip
DDDQN = {
    "hidden_dim": 256, "target_update_freq": 1000, "eps": 1.0, "eps_min": 0.05, "use_per": True, "per_alpha": 0.6,
    "per_beta": 0.4, "use_huber_loss": True, "action_fineness": None,
}  # fmt: skip


def opponent(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "weight": 1.0, "checkpoint": None, "deterministic": True, "opponents": None, **more}


def mixture(*entries: tuple[str, float]) -> dict[str, Any]:
    return opponent("weighted_mixture", opponents=[opponent(kind, weight=weight) for kind, weight in entries])


def phase(
    name: str, episodes: int, against: dict[str, Any], mode: str | None = "NORMAL", **more: Any
) -> dict[str, Any]:
    environment = {"mode": mode, "mixture": None, "keep_mode": True, **more.pop("environment", {})}
    return {
        "name": name, "episodes": episodes, "environment": environment, "opponent": against, "reward_shaping": None,
        "reward_bonus": None, "clear_buffer": True, **more,
    }  # fmt: skip


def file(kind: Any, given: dict[str, Any], /, *phases: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "curriculum": {"phases": list(phases)},
        "hyperparameters": {},
        "training": TRAINING,
        "agent": {"type": kind, "hyperparameters": given, "checkpoint_path": None},
        **more,
    }


MODES = {"mixture": [{"mode": "TRAIN_SHOOTING", "weight": 0.3}, {"mode": "NORMAL", "weight": 0.7}]}
STRONG = phase("strong", 10000, opponent("basic_strong"))
EVEN = phase("even", 100000, mixture(("basic_weak", 0.5), ("basic_strong", 0.5)))
READ: dict[str, dict[str, Any]] = {
    "base": file(
        "DDDQN",
        DDDQN,
        phase("shooting", 8000, opponent("none"), "TRAIN_SHOOTING", reward_shaping=SHAPING),
        phase("defence", 8000, opponent("basic_weak"), "TRAIN_DEFENSE"),
        phase("mixed", 20000, mixture(("basic_weak", 0.55), ("basic_strong", 0.45)), None, environment=MODES),
        phase("strong", 40000, opponent("basic_strong"), clear_buffer=False),
        hyperparameters={"learning_rate": 1e-4, "batch_size": 256},
    ),
    "simple": file("SAC", SAC, EVEN),
    "td3": file("TD3", TD3, EVEN, hyperparameters={"learning_rate": 3e-4, "batch_size": 256}),
    "sac": file("SAC", SAC, STRONG),
    "sac_archive": file(
        "SAC", SAC, STRONG, phase("archive", 200000, opponent("archive", skill_range=50, agent_type="SAC"))
    ),
    "test_1": file("DDQN_PER", {"per_alpha": 0.6}, phase("one", 2, opponent("none"))),
    "test_2": file("SAC", {}, phase("one", 2, opponent("self_play", checkpoint="latest"))),
}
DISTRIBUTED = opponent("archive", distribution={"pfsp": 0.5, "random": 0.3, "baseline": 0.2})
FOUR = mixture(("basic_weak", 1.0), ("basic_strong", 1.0), ("archive", 1.0), ("run_checkpoints", 1.0))
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "redq": (file("REDQTD3", TD3, STRONG), "agent.type is 'REDQTD3', expected one of"),
    "win discount": (
        file("SAC", SAC, STRONG, phase("mixed", 7000, FOUR, reward_bonus=BONUS)),
        r"phases\[1\].reward_bonus.WIN_DISCOUNT_START is an unknown key",
    ),
    "distribution": (
        file("SAC", SAC, phase("archive", 2000, DISTRIBUTED)),
        r"phases\[0\].opponent.distribution is an unknown key",
    ),
    "grid": (
        file("SAC", {}, STRONG, hyperparameters={"learning_rate": [1e-3, 1e-4]}),
        r"hyperparameters.learning_rate is \[0.001, 0.0001\]: expected a valid number",
    ),
    "another loss": (file("DDDQN", DDDQN | {"use_huber_loss": False}, EVEN), "use_huber_loss is an unknown key"),
}


def read(data: dict[str, Any]) -> RunConfig:
    return parse_config(modernise(data, []))


@pytest.mark.parametrize("name", READ)
def test_files_are_read(name: str) -> None:
    assert agent_config(read(READ[name])).learning_rate > 0


def test_opponents_keep_their_shares() -> None:
    (only,) = read(file("SAC", SAC, phase("mixed", 7000, FOUR))).curriculum.phases
    names = [(one.type, share) for one, share in shares_of(only.opponent)]
    assert names == [("basic_weak", 0.25), ("basic_strong", 0.25), ("snapshots", 0.25), ("snapshots", 0.25)]


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (
            "SAC",
            SAC,
            SACConfig(
                learning_rate=1e-3, target_tau=0.005, initial_temperature=0.2, noise_exponent=1.0, noise_length=250,
                warmup=10_000,
            ),
        ),
        (
            "TD3",
            TD3 | {"policy_freq": 3},
            TD3Config(exploration_noise=0.1, target_noise=0.2, target_noise_clip=0.5, policy_delay=3, warmup=10_000),
        ),
        (
            "DDQN_PER",
            DDDQN,
            DDDQNConfig(
                hidden=(256, 256), target_period=1000, target_tau=1.0, epsilon_start=1.0, epsilon_end=0.05,
                prioritised=True, priority_alpha=0.6, priority_beta=0.4, warmup=10_000,
            ),
        ),
    ],
)  # fmt: skip
def test_names_of_hyperparameters_mean_ours(kind: str, given: dict[str, Any], expected: Any) -> None:
    assert agent_config(read(file(kind, given, STRONG))) == expected


def test_updates_of_every_other_step_are_half_as_many() -> None:
    config = read(file("SAC", {}, STRONG) | {"training": {"train_freq": 4, "updates_per_step": 2}})
    assert config.training.updates_per_step == 0.5


def test_keys_without_effect_are_named(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(file("SAC", {}, STRONG)), encoding="utf-8")
    with pytest.warns(UserWarning, match="checkpoint_save_freq, episode_resource_samples, .* never had an effect"):
        assert parse_config(read_older(path)).training.eval_frequency == 100_000


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused(name: str) -> None:
    data, message = REFUSED[name]
    with pytest.raises(InvalidArgument, match=message):
        read(data)
