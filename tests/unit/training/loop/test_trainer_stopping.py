"""Ctrl-C in a run: a real process, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from tests.waiting import PATIENCE_S

from envfleet.training import train
from envfleet.training.loop import trainer

NOTICE = "Saving after this round; Ctrl-C again ends at once, without saving."


class Slow(gym.Env[Any, Any]):
    """Says so and takes its time in the fifth step."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, seconds: float) -> None:
        self._seconds, self._steps = seconds, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == 5:
            print("stepping", flush=True)
            time.sleep(self._seconds)
        return np.zeros(2, np.float32), 1.0, False, False, {}


gym.register("Slow-v0", f"{__name__}:Slow")


def run(folder: str, seconds: float) -> None:
    place = {"id": f"{__name__}:Slow-v0", "kwargs": {"seconds": seconds}}
    phase = {"name": "a", "transitions": 100_000, "environment": place, "opponent": {"type": "none"}}
    config = {"curriculum": {"phases": [phase]}, "agent": {"type": "PPO", "hyperparameters": {"hidden": [4]}}}
    result = train(config, backend="serial", base_output_dir=folder, run_name=f"run-{seconds:g}", verbose=False)
    print(result.reason, result.total_steps, flush=True)


def read(stream: IO[bytes]) -> str:
    """Read one line that is neither empty nor about compiling."""
    while (line := stream.readline()) == b"\n" or line.startswith(b"envfleet: "):
        pass
    return line.decode().strip()


def test_ctrl_c_saves_and_a_second_one_does_not_wait(tmp_path: Path) -> None:
    program = f"from {__name__} import run; [run({str(tmp_path)!r}, s) for s in (1, 2, 3600)]"
    command, pipe = [sys.executable, "-c", program], subprocess.PIPE
    with subprocess.Popen(command, cwd=Path(__file__).parents[4], stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert read(process.stdout) == "stepping"
        os.kill(process.pid, signal.SIGINT)
        assert read(process.stderr) == NOTICE
        assert read(process.stdout) == "interrupted 5"
        assert (tmp_path / "run-1" / "resume.pt").is_file()

        assert read(process.stdout) == "stepping"
        process.stderr.close()  # as tee does when it has the same Ctrl-C
        os.kill(process.pid, signal.SIGINT)
        assert read(process.stdout) == "interrupted 5"
        assert (tmp_path / "run-2" / "resume.pt").is_file()

        assert read(process.stdout) == "stepping"
        os.kill(process.pid, signal.SIGINT)
        time.sleep(5.0)  # two signals at once may become one
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_S) == -signal.SIGINT
        assert not (tmp_path / "run-3600" / "resume.pt").exists()


def test_an_endless_evaluation_ends_after_max_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "_EVALUATION_MINUTES", 0.0)
    place = {"id": f"{__name__}:Slow-v0", "kwargs": {"seconds": 0}}
    phase = {"name": "a", "transitions": 10**9, "environment": place, "opponent": {"type": "none"}}
    config = {"curriculum": {"phases": [phase]}, "agent": {"type": "PPO", "hyperparameters": {"hidden": [4]}}}
    with pytest.warns(RuntimeWarning, match=r"not finished .* with max_minutes=0.02.* make sure that episodes end"):
        result = train(
            config, backend="serial", max_minutes=0.02, base_output_dir=tmp_path, run_name="a", verbose=False
        )
    assert result.reason == "max_minutes"
    assert result.evaluation == {}
    assert result.checkpoint is not None
