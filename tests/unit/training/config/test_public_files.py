"""The ten files of the public pipeline, as far as they are described: each is read, or says what to write instead."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest

from envfleet.errors import InvalidArgument
from envfleet.training.config import RunConfig, agent_config, parse_config

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
    "redq": (file("REDQTD3", TD3, STRONG), r"agent.type is 'REDQTD3', .*: write 'TD3', and leave out"),
    "tdmpc2_mixed": (file("TDMPC2", {"horizon": 5}, STRONG), r"agent.type is 'TDMPC2', .*: write 'SAC', and leave out"),
    "tdmpc2_mixed, as SAC": (
        file("SAC", SAC, STRONG, phase("mixed", 7000, FOUR, reward_bonus=BONUS)),
        r"phases\[1\].reward_bonus.WIN_DISCOUNT_START is 0.92, .*: leave it out",
    ),
    "distribution": (
        file("SAC", SAC, phase("archive", 2000, DISTRIBUTED)),
        r"phases\[0\].opponent.distribution is .*: write a weighted_mixture",
    ),
    "grid": (
        file("SAC", {}, STRONG, hyperparameters={"learning_rate": [1e-3, 1e-4], "batch_size": [128, 256]}),
        r"hyperparameters.learning_rate is \[0.001, 0.0001\], expected one value: write one, and train once for each",
    ),
    "grid of the agent": (
        file("SAC", {"discount": [0.98, 0.99]}, STRONG),
        r"agent.hyperparameters.discount is \[0.98, 0.99\], expected one value",
    ),
    "grid of agents": (file(["SAC", "TD3"], {}, STRONG), r"agent.type is \['SAC', 'TD3'\], expected one value"),
    "action_fineness": (
        file("DDDQN", DDDQN | {"action_fineness": 3}, EVEN),
        r"agent.hyperparameters.action_fineness is 3, .*: write agent.action_fineness",
    ),
    "eps_decay": (
        file("DDDQN", DDDQN | {"eps_decay": 0.99}, EVEN),
        r".*eps_decay is 0.99, .* write epsilon_transitions",
    ),
}


@pytest.mark.parametrize("name", READ)
def test_files_are_read_with_a_note_for_each_key_without_effect(name: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = parse_config(READ[name])
    assert isinstance(config, RunConfig)
    assert all(re.search(r"has no effect: .+", str(one.message)) for one in caught)
    assert agent_config(config).learning_rate > 0


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_write_instead(name: str) -> None:
    data, message = REFUSED[name]
    with pytest.raises(InvalidArgument, match=message):
        parse_config(data)


@pytest.mark.parametrize("kind", ["CrossQ", "TDMPC2_REPO"])
def test_agents_that_are_not_here_have_one_that_is(kind: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"agent.type is '{kind}', .*: write 'SAC'"):
        parse_config(file(kind, {}, STRONG))
