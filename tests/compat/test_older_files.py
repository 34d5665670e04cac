"""Files of the pipeline that `rl_hockey` stands for, as far as they are described: each is read, or refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rl_hockey.common.training.older_files import modernise, read_older

from envfleet.agents import DDDQNConfig, SACConfig, TD3Config
from envfleet.errors import InvalidArgument
from envfleet.training.config import RunConfig, parse_config, read_config, shipped_names
from envfleet.training.loop.learners import UpdateSchedule
from envfleet.training.phases import shares_of
from envfleet.training.plan import resolve

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


def file(kind: Any, hyperparameters: dict[str, Any], /, *phases: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "curriculum": {"phases": list(phases)},
        "hyperparameters": {},
        "training": TRAINING,
        "agent": {"type": kind, "hyperparameters": hyperparameters, "checkpoint_path": None},
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
    assert resolve(read(READ[name])).agent_config.learning_rate > 0


def test_opponents_keep_their_shares() -> None:
    (only,) = read(file("SAC", SAC, phase("mixed", 7000, FOUR))).curriculum.phases
    names = [(one.type, share) for one, share in shares_of(only.opponent)]
    assert names == [("basic_weak", 0.25), ("basic_strong", 0.25), ("snapshots", 0.25), ("snapshots", 0.25)]


@pytest.mark.parametrize(
    ("kind", "hyperparameters", "expected"),
    [
        (
            "SAC",
            SAC,
            SACConfig(
                learning_rate=1e-4, target_tau=0.005, initial_temperature=0.2, noise_exponent=1.0, noise_length=250,
                warmup=10_000,
            ),
        ),
        (
            "TD3",
            TD3 | {"policy_freq": 3},
            TD3Config(
                learning_rate=1e-4, exploration_noise=0.1, target_noise=0.2, target_noise_clip=0.5, policy_delay=3,
                warmup=10_000,
            ),
        ),
        (
            "DDQN_PER",
            DDDQN,
            DDDQNConfig(
                learning_rate=1e-4, hidden=(256, 256), target_period=1000, target_tau=1.0, epsilon_start=1.0,
                epsilon_end=0.05, prioritized=True, priority_alpha=0.6, priority_beta=0.4, warmup=10_000,
            ),
        ),
    ],
)  # fmt: skip
def test_names_of_hyperparameters_mean_ours(kind: str, hyperparameters: dict[str, Any], expected: Any) -> None:
    assert resolve(read(file(kind, hyperparameters, STRONG))).agent_config == expected


def theirs(updates: float, every: int, num_envs: int, rounds: int) -> float:
    """The updates that their loop makes: its counter of steps grows by `num_envs` per step of all games."""
    return sum(updates for step in range(num_envs, (rounds + 1) * num_envs, num_envs) if step % every == 0)


@pytest.mark.parametrize("num_envs", [1, 4, 6, 8])
@pytest.mark.parametrize(("updates", "every"), [(1, 1), (2, 4), (1, 6), (20, 3)])
def test_updates_are_as_many_as_there_for_any_number_of_games(updates: float, every: int, num_envs: int) -> None:
    training = {"updates_per_step": updates, "train_freq": every, "warmup_steps": 0}
    read = parse_config(modernise(file("SAC", {}, STRONG) | {"training": training}, [], num_envs)).training
    schedule = UpdateSchedule(per_transition=read.updates_per_step, per_round=read.updates_per_round)
    num_updates = 0
    for _ in range(600):
        schedule.count(num_envs)
        num_updates += schedule.take()
    assert num_updates == theirs(updates, every, num_envs, 600)


@pytest.mark.parametrize("training", [None, {}, {"warmup_steps": 5}, {"train_freq": 1}])
def test_absent_updates_are_one_per_step_of_all_games(training: dict[str, Any] | None) -> None:
    data = file("SAC", {}, STRONG)
    data = {name: section for name, section in data.items() if name != "training"}
    config = read(data if training is None else data | {"training": training})
    assert (config.training.updates_per_round, config.training.updates_per_step) == (1.0, 1.0)


def test_absent_keys_have_the_defaults_of_that_pipeline() -> None:
    data = file("SAC", {}, STRONG)
    for name in ("hyperparameters", "training"):
        del data[name]
    agent_config = resolve(read(data)).agent_config
    assert (agent_config.learning_rate, agent_config.batch_size, agent_config.initial_temperature) == (1e-4, 256, 0.2)
    assert resolve(read(file("SAC", {"alpha": 0.5}, STRONG))).agent_config.initial_temperature == 0.5


def test_learning_rate_of_the_file_overrides_the_agents() -> None:
    notes: list[str] = []
    data = file("SAC", SAC, STRONG, hyperparameters={"learning_rate": 2e-4})
    assert resolve(parse_config(modernise(data, notes))).agent_config.learning_rate == 2e-4
    assert any("agent.hyperparameters.learning_rate=0.001 gives way" in note for note in notes)


def write(path: Path, data: dict[str, Any]) -> Path:
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_what_a_file_changes_is_reported(tmp_path: Path) -> None:
    opponents = [
        opponent("self_play"),
        opponent("archive"),
        opponent("basic_weak"),
        opponent("self_play") | {"deterministic": False},
    ]
    mixed = opponent("weighted_mixture", opponents=opponents)
    path = write(tmp_path / "old.json", file("SAC", {}, STRONG, phase("mixed", 5, mixed, None, environment=MODES)))
    with pytest.warns(UserWarning, match="is read as a file of rl_hockey") as caught:
        data = read_older(path, num_envs=8)
    assert parse_config(data).training.eval_frequency == 100_000
    (message,) = (str(one.message) for one in caught)
    for note in (
        f"{path} is read as a file of rl_hockey",
        "training.updates_per_step=1 become updates_per_round=1, counted per step of all 8 sub-environments",
        "phases[1].opponent.opponents[0].deterministic was ignored there and counts here",
        "phases[1].opponent.opponents[1].deterministic was ignored there and counts here",
        "phases[1].opponent.opponents[3] is the learner, which learns from both sides here",
        "phases[1].environment.mixture is drawn for every episode",
        "hyperparameters.learning_rate=0.0001, hyperparameters.batch_size=256, agent.hyperparameters.alpha=0.2",
        "max_episode_steps, resource_log_freq never had an effect and are left out",
    ):
        assert note in message
    assert message.count("deterministic was ignored") == 2


@pytest.mark.parametrize("mark", [{"$schema": "schema.json"}, {"seed": 0}])
def test_files_of_our_own_are_read_as_they_are(tmp_path: Path, mark: dict[str, Any]) -> None:
    data = mark | {"curriculum": {"phases": [STRONG | {"opponent": {"type": "self_play"}}]}, "agent": {"type": "SAC"}}
    assert read_older(write(tmp_path / "own.json", data)) == data  # and warns of nothing
    assert read_older(data) == data


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_files_and_what_is_written_of_them_are_our_own(tmp_path: Path, name: str) -> None:
    config = read_config(name)
    assert parse_config(read_older(name)) == config
    assert parse_config(read_older(write(tmp_path / "config.json", config.model_dump(mode="json")))) == config


@pytest.mark.parametrize("data", [{"agent": 5}, {"curriculum": 5}, {"training": None}, {}, {"agent": {}}])
def test_sections_of_a_wrong_type_are_refused_by_their_names(data: dict[str, Any]) -> None:
    whole = {"curriculum": {"phases": [STRONG]}, "agent": {"type": "SAC"}}
    with pytest.raises(InvalidArgument, match="|".join(data) or "curriculum is missing"):
        read(whole | data if data else {})


def test_a_train_freq_of_no_steps_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"training.train_freq=0: pass a whole number of at least 1"):
        read(file("SAC", {}, STRONG) | {"training": {"train_freq": 0}})


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_what_is_no_configuration_is_refused_with_its_path(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "none.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidArgument, match=re.escape(str(path))):
        read_older(path)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused(name: str) -> None:
    data, message = REFUSED[name]
    with pytest.raises(InvalidArgument, match=message):
        resolve(read(data))
