"""A run that was killed and resumed is the run that was not, to the last bit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.training.watching import Watcher

from envfleet.agents import load_agent
from envfleet.errors import InvalidArgument
from envfleet.training import RunResult, resume, train, train_single_run
from envfleet.training.config import RunOptions, parse_config
from envfleet.training.events import Ended, Event, Learned, Saved
from envfleet.training.folder import RunFolder
from envfleet.training.loop.trainer import Trainer
from envfleet.training.plan import resolve

pytestmark = [
    pytest.mark.timeout(600),  # processes that are waited for, on a busy machine
    pytest.mark.usefixtures("no_plots"),
]

CONFIG: dict[str, Any] = {
    "curriculum": {
        "phases": [
            {
                "name": "modes",
                "transitions": 400,
                "environment": {"mixture": [{"mode": "NORMAL"}, {"mode": "TRAIN_SHOOTING"}]},
                "opponent": {
                    "type": "weighted_mixture",
                    "opponents": [{"type": "none"}, {"type": "basic_weak"}, {"type": "basic_strong"}],
                },
                "reward_shaping": {"N": 2, "K": 2},
            },
            {
                "name": "self-play",
                "transitions": 700,
                "opponent": {"type": "weighted_mixture", "opponents": [{"type": "self_play"}, {"type": "snapshots"}]},
                "clear_buffer": False,
            },
        ]
    },
    "hyperparameters": {"batch_size": 16},
    "training": {
        "warmup_steps": 100,
        "updates_per_step": 0.1,
        "eval_frequency": 400,
        "eval_games": 2,
        "checkpoint_frequency": 300,
        "pool": {"snapshot_every": 100},
    },
    "agent": {"type": "SAC", "hyperparameters": {"hidden": [16], "noise_exponent": 1.0, "num_steps": 2}},
}
NUM_ENVS = 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """An uninterrupted run on the compiled game."""
    return run("compiled", tmp_path_factory.mktemp("whole"), "whole")


def run(engine: str, folder: Path, name: str, *observers: Watcher) -> RunResult:
    torch.set_num_threads(1)
    return train(
        CONFIG, num_envs=NUM_ENVS, engine=engine, backend="serial" if engine == "box2d" else None,
        base_output_dir=folder, run_name=name, verbose=False, observers=observers,
    )  # fmt: skip


def die_after_the_third_checkpoint() -> Watcher:
    saved: list[Saved] = []

    def react(event: Event) -> None:
        if isinstance(event, Saved) and not event.is_best:
            saved.append(event)
        if isinstance(event, Learned) and len(saved) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    return Watcher(react)


def weights_of(result: RunResult) -> dict[str, Any]:
    assert result.checkpoint is not None
    return load_agent(result.checkpoint).weights()


@pytest.mark.parametrize("engine", ["compiled", "box2d"])
def test_a_run_that_was_killed_ends_as_one_that_was_not(engine: str, whole: RunResult, tmp_path: Path) -> None:
    victim = subprocess.run(
        [sys.executable, "-m", "tests.unit.training.test_single_run_resume", engine, str(tmp_path), "killed"],
        timeout=500, check=False,
    )  # fmt: skip
    assert victim.returncode == -signal.SIGKILL
    resumed = resume(tmp_path / "killed", verbose=False)
    assert (resumed.total_steps, resumed.total_updates) == (whole.total_steps, whole.total_updates)
    for name in ("episodes.csv", "updates.csv", "evaluations.csv"):
        assert (resumed.run_dir / name).read_bytes() == (whole.run_dir / name).read_bytes()
    first, second = weights_of(whole), weights_of(resumed)
    for network, tensors in first.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, second[network][name]), f"{network}.{name}"


def test_a_run_that_was_asked_to_stop_ends_as_one_that_was_not(whole: RunResult, tmp_path: Path) -> None:
    is_asked: list[bool] = []

    def stop(event: Event) -> None:
        if isinstance(event, Saved) and event.transitions > 500 and not is_asked:
            is_asked.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    watcher = Watcher(stop)
    run("compiled", tmp_path, "stopped", watcher)
    resumed = resume(tmp_path / "stopped", verbose=False)
    assert [event.reason for event in watcher.of(Ended)] == ["interrupted"]
    for name in ("episodes.csv", "updates.csv", "evaluations.csv"):
        assert (resumed.run_dir / name).read_bytes() == (whole.run_dir / name).read_bytes()


def test_a_run_without_a_checkpoint_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="not the folder of a run"):
        resume(tmp_path)


def alone(**training: Any) -> dict[str, Any]:
    """A single-player run that learns in a thread."""
    return {
        "curriculum": {"phases": [{"name": "swing", "transitions": 600, "environment": {"id": "Pendulum-v1"}}]},
        "training": {"warmup_steps": 100, "eval_games": 2, "eval_frequency": None, "checkpoint_frequency": None}
        | training,
        "hyperparameters": {"batch_size": 16},
        "agent": {"type": "SAC", "hyperparameters": {"hidden": [8]}},
    }


def same(one: RunResult, other: RunResult) -> bool:
    first, second = weights_of(one), weights_of(other)
    return all(torch.equal(first[part][name], second[part][name]) for part in first for name in first[part])


def test_learning_does_not_depend_on_budget_or_checkpoints(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    how: dict[str, Any] = {"num_envs": 4, "backend": "serial", "base_output_dir": tmp_path, "verbose": False}
    whole = train(alone(), run_name="whole", **how)
    assert same(whole, train(alone(checkpoint_frequency=130), run_name="often", **how))
    train(alone(), run_name="budget", max_transitions=300, **how)
    resumed = resume(tmp_path / "budget", verbose=False)
    assert same(whole, resumed)
    for name in ("episodes.csv", "updates.csv"):
        assert (resumed.run_dir / name).read_bytes() == (whole.run_dir / name).read_bytes()


def test_stopping_the_last_evaluation_interrupts_the_run(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, config := parse_config(alone()), options={"num_envs": 4}, name="late")
    with contextlib.closing(
        Trainer(resolve(config, RunOptions(num_envs=4, backend="serial")), folder=folder)
    ) as trainer:
        assert trainer.run(lambda: trainer.transitions >= 600) == "interrupted"
        assert trainer.progress.evaluation is None
    with contextlib.closing(
        Trainer(resolve(config, RunOptions(num_envs=4, backend="serial")), folder=folder)
    ) as trainer:
        trainer.load_state_dict(folder.load())
        assert trainer.run() == "completed"
        assert trainer.progress.evaluation is not None


def test_a_curriculum_is_evaluated_in_what_it_leads_to(tmp_path: Path) -> None:
    def phase(name: str, steps: int) -> dict[str, Any]:
        environment = {"id": "CartPole-v1", "kwargs": {"max_episode_steps": steps}}
        return {"name": name, "transitions": 64, "environment": environment}

    config = {
        "curriculum": {"phases": [phase("short", 3), phase("long", 400)]},
        "training": {"rollout_steps": 16, "eval_games": 2, "eval_frequency": None, "checkpoint_frequency": None},
        "agent": {"type": "PPO", "hyperparameters": {"hidden": [8]}},
    }
    result = train(config, num_envs=4, backend="serial", base_output_dir=tmp_path, verbose=False)
    assert result.evaluation["none"]["mean_return"] > 5


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), sys.argv[3], die_after_the_third_checkpoint())


def test_the_weights_to_begin_with_have_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^nope.pt cannot be read \(No such file"):
        train_single_run(CONFIG, tmp_path / "runs", verbose=False, checkpoint_path="nope.pt")


def test_a_run_that_cannot_be_saved_resumes_with_new_episodes(tmp_path: Path) -> None:
    phase = {"name": "all", "transitions": 64, "environment": {"id": "LunarLander-v3"}}
    training = {"rollout_steps": 8, "eval_frequency": None, "eval_games": 2}
    config: dict[str, Any] = {"curriculum": {"phases": [phase]}, "training": training, "agent": {"type": "PPO"}}
    options: dict[str, Any] = {"base_output_dir": tmp_path, "verbose": False}
    half = train(config, num_envs=2, max_transitions=24, **options)
    assert half.reason == "max_transitions"
    with pytest.warns(RuntimeWarning, match=r"'LunarLander-v3' cannot be saved .* new episodes begin"):
        assert resume(half.run_dir, verbose=False).total_steps == 64
