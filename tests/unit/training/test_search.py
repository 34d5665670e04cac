"""A search over keys of a configuration: best trial, early ends, and resuming after a kill."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl
import pytest
from gymnasium import spaces
from matplotlib.image import imread
from tests.waiting import PATIENCE_S
from typer.testing import CliRunner

from envfleet.cli.app import app
from envfleet.errors import InvalidArgument
from envfleet.training import RunOptions
from envfleet.training.config import read_config
from envfleet.training.search import search

pytestmark = pytest.mark.usefixtures("no_plots")

PAY = "curriculum.phases[0].environment.kwargs.pay"
RATE = "agent.hyperparameters.learning_rate"


class Paid(gym.Env[Any, Any]):
    """Pays the same for every action, four steps long: a run's return is what the configuration says."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, pay: float = 1.0) -> None:
        self._pay, self._left = pay, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 4
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return np.zeros(2, np.float32), self._pay, self._left == 0, False, {}


gym.register("Paid-v0", f"{__name__}:Paid")


def config(**hyperparameters: Any) -> dict[str, Any]:
    place = {"id": f"{__name__}:Paid-v0", "kwargs": {"pay": 1.0}}
    phase = {"name": "a", "transitions": 64, "environment": place, "opponent": {"type": "none"}}
    return {
        "curriculum": {"phases": [phase]},
        "training": {"rollout_steps": 8, "eval_games": 2, "eval_frequency": 16, "checkpoint_frequency": 16},
        "agent": {"type": "PPO", "hyperparameters": {"hidden": [4], "num_epochs": 1, **hyperparameters}},
    }


def look(out: Path, space: dict[str, Any], **rest: Any) -> Any:
    return search(config(), space, out=out, options=RunOptions(num_envs=2, backend="serial"), verbose=False, **rest)


def look_and_die(out: Path, space: dict[str, Any], **rest: Any) -> None:
    """Search, and kill this process in the first step after the first trial has saved."""
    step = Paid.step

    def step_or_die(self: Paid, action: Any) -> Any:
        if (out / "runs" / "trial-001" / "resume.pt").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, action)

    Paid.step = step_or_die  # type: ignore[method-assign]
    look(out, space, **rest)


def evaluations(out: Path, trial: int) -> list[float]:
    table = pl.read_csv(out / "runs" / f"trial-{trial:03}" / "evaluations.csv")
    values: list[float] = table.filter(figure="mean_return")["value"].to_list()
    return values


def test_the_best_trial_is_found_and_bad_ones_are_ended_early(tmp_path: Path) -> None:
    result = look(tmp_path, {PAY: {"low": 0.0, "high": 10.0}, "training.rollout_steps": [8, 16]}, trials=8)
    pays = [one[PAY] for one in result.values]
    for number, (pay, score) in enumerate(zip(pays, result.scores, strict=True)):
        means = evaluations(tmp_path, number + 1)
        if score is None:  # the median of those before was better
            assert number >= 5
            assert pay < np.median([p for p, s in zip(pays[:number], result.scores, strict=False) if s is not None])
            assert means == pytest.approx([4 * pay], rel=1e-5)
        else:
            assert score == pytest.approx(4 * pay)
            assert means == pytest.approx([4 * pay] * 4, rel=1e-5)
    assert None in result.scores
    assert result.is_complete
    assert pays[result.best] == max(pays)
    best = read_config(result.best_config)
    assert best.curriculum.phases[0].environment.kwargs["pay"] == max(pays)
    assert best.training.rollout_steps == result.values[result.best]["training.rollout_steps"]
    assert imread(tmp_path / "search.png")[..., :3].std() > 0.05
    assert not list(tmp_path.glob("runs/*/resume.pt"))
    again = look(tmp_path, {PAY: {"low": 0.0, "high": 10.0}, "training.rollout_steps": [8, 16]}, trials=8)
    assert again == result
    with pytest.raises(InvalidArgument, match=r"has a search with other space: .* or another folder as `out`"):
        look(tmp_path, {PAY: [1.0]})


def test_a_search_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    space = {RATE: {"low": 1e-5, "high": 1e-2, "log": True}, PAY: {"low": 0.0, "high": 10.0}}
    whole = look(tmp_path / "whole", space, trials=2)
    program = f"from {__name__} import *; look_and_die(Path({str(tmp_path)!r}), {space}, trials=2)"
    root = Path(__file__).parents[3]
    killed = subprocess.run([sys.executable, "-c", program], cwd=root, timeout=PATIENCE_S, check=False)
    assert killed.returncode == -signal.SIGKILL
    resumed = look(tmp_path, space, trials=2)
    assert (resumed.scores, resumed.values) == (whole.scores, whole.values)
    tables = [folder / "runs" / "trial-001" / "episodes.csv" for folder in (tmp_path, tmp_path / "whole")]
    assert tables[0].read_bytes() == tables[1].read_bytes()


def test_an_interrupted_trial_keeps_its_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config()
    settings["curriculum"]["phases"][0]["transitions"] = 1_600
    settings["training"] |= {"eval_frequency": None, "checkpoint_frequency": None}
    options = RunOptions(num_envs=2, backend="serial", stop_at_return=1.0)  # known after 100 episodes of 4 steps
    look_again = functools.partial(
        search, settings, {PAY: [1.0]}, trials=1, out=tmp_path, options=options, verbose=False
    )
    with monkeypatch.context() as patch:
        step, steps = Paid.step, itertools.count()

        def step_and_interrupt(self: Paid, action: Any) -> Any:
            if next(steps) == 50:
                signal.raise_signal(signal.SIGINT)
            return step(self, action)

        patch.setattr(Paid, "step", step_and_interrupt)
        assert not look_again().is_complete
    assert look_again().is_complete
    assert len(pl.read_csv(tmp_path / "runs" / "trial-001" / "episodes.csv")) == 100


def test_a_trial_that_cannot_be_or_diverges_is_ended_early(tmp_path: Path) -> None:
    clip = "agent.hyperparameters.clip"
    result = look(tmp_path, {RATE: [1e36], clip: [0.2]}, trials=1)
    assert (result.scores, result.best, result.best_config, result.is_complete) == ([None], None, None, True)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"agent.hyperparameters.learning_rat": [1]}, r"an unknown key, .*: did you mean learning_rate\?"),
        ({"agent.learning_rate": [1]}, r"agent\.learning_rate is an unknown key, accepted are .* hyperparameters"),
        ({"zzz": [1]}, "zzz is an unknown key"),
        (
            {"curriculum.phases[1].episodes": [1]},
            r"unknown key 'curriculum.phases\[1\].episodes': `envfleet train CONFIG --print-config`",
        ),
        ({RATE: 0.1}, r"learning_rate is 0\.1 in the space: write a list of choices, or \{\"low\": 1e-5"),
        ({RATE: {"low": 1e-5}}, r"in the space: write a list of choices"),
        ({RATE: {"low": 1, "high": 0}}, r"not a range \(.*\): change it"),
        ({RATE: {"low": 0, "high": 1, "log": True}}, r"not a range \(.*\): change it"),
        ({RATE: {"low": 0.1, "high": 1, "log": "false"}}, r"not a range \(log='false' is neither true nor false\)"),
        ({RATE: {"low": -1, "high": 1}}, r"the space has -1 for agent\.hyperparameters\.learning_rate: .*"),
        ({"training.rollout_steps": [8, 8.5]}, r"the space has 8\.5 for training\.rollout_steps: .* is 8\.5: expected"),
        ({}, r"the space is \{\}, expected an object"),
        ("none.json", r"none\.json cannot be read .*: pass a JSON file with the space"),
    ],
)
def test_invalid_spaces_are_refused_before_the_first_trial(space: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=message):
        look(tmp_path / "out", space)
    assert not (tmp_path / "out").exists()


def test_the_command_names_the_best_configuration(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(config()), encoding="utf-8")
    (tmp_path / "space.json").write_text(json.dumps({PAY: [1.0, 2.0]}), encoding="utf-8")
    arguments = ["search", "mine.json", "--space", "space.json", "--trials", "2", "--out", "found", "-n", "2"]
    arguments += ["--backend", "serial"]
    with contextlib.chdir(tmp_path):
        result = CliRunner(env={"NO_COLOR": "1", "TERM": "dumb"}).invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "Trial 2 of 2: pay " in result.stderr
    assert "2 of 2 trials completed." in result.stdout
    assert "Best: " in result.stdout
    assert "Train with it       envfleet train found/best.json --num-envs 2" in result.stdout
    assert max(len(line) for line in result.output.splitlines()) <= 110
