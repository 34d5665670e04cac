"""Training on a native MuJoCo task: a run that was killed and resumed equals one that was not, in every bit."""

from __future__ import annotations

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
from envfleet.training import RunResult, resume, train
from envfleet.training.events import Began, Episodes, Event, Saved

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_plots")]

AGENTS: dict[str, dict[str, Any]] = {
    "PPO": {"training": {"rollout_steps": 16}},
    "SAC": {"training": {"warmup_steps": 60, "updates_per_step": 0.25}, "hyperparameters": {"batch_size": 16}},
}


def run(agent: str, folder: Path, name: str, *observers: Watcher) -> RunResult:
    torch.set_num_threads(1)
    phase = {"name": "balance", "transitions": 480, "environment": {"id": "InvertedPendulum-v5"}}
    config: dict[str, Any] = {
        "curriculum": {"phases": [phase]},
        "agent": {"type": agent, "hyperparameters": {"hidden": [8]}},
    }
    config |= AGENTS[agent]
    config["training"] |= {"eval_games": 2, "eval_frequency": 200, "checkpoint_frequency": 100}
    how: dict[str, Any] = {"num_envs": 4, "backend": "native", "base_output_dir": folder, "verbose": False}
    return train(config, run_name=name, observers=observers, **how)


def stop_after_the_second_checkpoint(signal_number: int) -> Watcher:
    saved: list[Saved] = []

    def react(event: Event) -> None:
        if isinstance(event, Saved) and not event.is_best:
            saved.append(event)
        if isinstance(event, Episodes) and len(saved) == 2:
            saved.append(saved[-1])
            os.kill(os.getpid(), signal_number)

    return Watcher(react)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_stopped_run_ends_as_one_that_was_not(agent: str, tmp_path: Path) -> None:
    watcher = Watcher()
    whole = run(agent, tmp_path, "whole", watcher)
    assert all("native" in event.plan for event in watcher.of(Began))
    command = [sys.executable, "-m", "tests.unit.training.test_single_run_mujoco", agent, str(tmp_path)]
    victim = subprocess.run(command, timeout=500, check=False)
    assert victim.returncode == -signal.SIGKILL
    run(agent, tmp_path, "interrupted", stop_after_the_second_checkpoint(signal.SIGINT))
    for name in ("killed", "interrupted"):
        assert (tmp_path / name / "updates.csv").read_bytes() != (whole.run_dir / "updates.csv").read_bytes()
        compare(whole, resume(tmp_path / name, verbose=False))


def compare(whole: RunResult, resumed: RunResult) -> None:
    for name in ("episodes.csv", "updates.csv", "evaluations.csv"):
        assert (resumed.run_dir / name).read_bytes() == (whole.run_dir / name).read_bytes()
    assert whole.checkpoint is not None
    assert resumed.checkpoint is not None
    first, second = (load_agent(one.checkpoint).weights() for one in (whole, resumed) if one.checkpoint is not None)
    for network, tensors in first.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, second[network][name]), f"{network}.{name}"


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), "killed", stop_after_the_second_checkpoint(signal.SIGKILL))
