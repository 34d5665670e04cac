"""The commands of RLlib, best actions, and a search over learning rates."""

from __future__ import annotations

import contextlib
import importlib
import json
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import imageio.v3 as imageio
import numpy as np
import pytest
from typer.testing import CliRunner

from envfleet.cli.app import app
from envfleet.errors import InvalidArgument
from envfleet.rllib import PackedPPO
from envfleet.rllib.experiments.comparison import grid
from envfleet.rllib.experiments.evaluation import evaluate
from envfleet.rllib.experiments.training import TrainingPlan, build, train

pytestmark = pytest.mark.usefixtures("local_ray")

SMALL = TrainingPlan(num_envs=8, batch_size=1600, minibatch_size=800, num_epochs=1, hidden=(16,))


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["rllib", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout  # on stderr is what kernels say while they compile


def test_train_shows_a_table_and_writes_a_gif(tmp_path: Path) -> None:
    output = run(
        "train", "-n", 8, "--batch-size", 1600, "--minibatch-size", 800, "--epochs", 1, "-i", 2,
        "--episodes", 3, "--out", tmp_path,
    )  # fmt: skip
    rows = [line.split() for line in output.splitlines() if line.strip().startswith(("1 ", "2 "))]
    assert [row[0] for row in rows] == ["1", "2"]
    assert -1900 < float(rows[-1][1]) < -200
    iteration, sampling, connectors, learner = (float(row) for row in rows[-1][4::2])
    assert sampling + connectors + learner == pytest.approx(iteration, abs=0.05)
    assert "best actions, 3 episodes" in output
    assert len(imageio.imread(tmp_path / "packed_vec.gif", index=None)) > 20


def test_compare_writes_figures_and_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`envfleet rllib compare`, called by the module of the first comparison."""
    options = ["--num-envs", "4,16,65", "--batch-sizes", "64", "--iterations", "1", "--epochs", "1", "--policies"]
    monkeypatch.setattr(sys, "argv", ["run_training.py", *options, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("vecenv.run_training", run_name="__main__")
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert "left out: batches of 64 with 65 sub-environments, less than a step" in output
    assert "4 of 4: packed_vec, 16 sub-environments, batches of 64, about 1 min left" in output
    assert sorted(one.name for one in (tmp_path / "policies").iterdir()) == [
        "packed_vec-16-64", "packed_vec-4-64", "vec-16-64", "vec-4-64",
    ]  # fmt: skip
    figures = json.loads((tmp_path / "vec_data.json").read_text())
    assert [(one["plan"]["way"], one["plan"]["num_envs"]) for one in figures] == [
        ("vec", 4), ("packed_vec", 4), ("vec", 16), ("packed_vec", 16),
    ]  # fmt: skip
    assert all(64 <= one["samples"] < 64 + 16 for one in figures)
    assert "learner: estimate_advantages" in figures[1]["connectors"]
    for plot in ("throughput.png", "connectors.png"):
        assert imageio.imread(tmp_path / plot).std() > 0


def test_mistakes_are_explained() -> None:
    unknown = CliRunner().invoke(app, ["rllib", "train", "--env", "Nowhere-v0"])
    assert (unknown.exit_code, "'Nowhere-v0', which is not registered" in unknown.output) == (2, True)
    result = CliRunner().invoke(app, ["rllib", "train", "--way", "fast"])
    assert result.exit_code == 2
    with pytest.raises(InvalidArgument, match="no batch size"):
        grid(SMALL, ["vec"], [100], [10])
    with pytest.raises(InvalidArgument, match=r"minibatch_size=9.*count samples"):
        TrainingPlan(batch_size=8, num_envs=4, minibatch_size=9)
    with pytest.raises(InvalidArgument, match=r"less than one step of 16 .*count samples"):
        TrainingPlan(batch_size=8, num_envs=16)


def test_the_comparison_can_be_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the defaults of the first one: batches of 50,000, and its name of the file."""
    from vecenv import run_training

    asked: list[Any] = []

    def watched(plans: list[TrainingPlan], *_: Any, **options: Any) -> list[Any]:
        asked.append((plans, options))
        return []

    monkeypatch.setattr("envfleet.rllib.experiments.comparison.sweep", watched)
    monkeypatch.setattr("envfleet.rllib.experiments.training.quiet_ray", contextlib.nullcontext)
    assert run_training.run(num_envs=[8], out=tmp_path) == []
    ((plans, options),) = asked
    assert [(plan.way, plan.num_envs) for plan in plans] == [("vec", 8), ("packed_vec", 8)]
    assert {plan.batch_size for plan in plans} == {50_000}
    assert options["file_name"] == "vec_data.json"


def test_best_actions_are_the_same_each_time() -> None:
    with build(SMALL) as algorithm:
        (_,) = train(algorithm, SMALL, 1)
        once, twice = (evaluate(algorithm, SMALL.env, 5, seed=7) for _ in range(2))
        others = evaluate(algorithm, SMALL.env, 5, seed=8)
    np.testing.assert_array_equal(once, twice)
    np.testing.assert_array_equal(once[1:], others[:-1])
    assert ((once < -1) & (once > -2000)).all()


@pytest.fixture
def search_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs" / "guides")
    module = importlib.import_module("rllib_search")
    monkeypatch.delitem(sys.modules, "rllib_search")
    return module


def test_a_trial_of_tune_is_packed(search_module: ModuleType) -> None:
    settings: dict[str, Any] = search_module.param_space(num_envs=8, batch_size=160).to_dict()
    assert settings["lr"] == {"grid_search": [1e-4, 1e-3]}
    algorithm = PackedPPO(config={**settings, "lr": 1e-3})
    assert algorithm.train()["env_runners"]["num_env_steps_sampled"] == 160
    assert type(algorithm.env_runner).__name__ == "PackedEnvRunner"
    algorithm.stop()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_search_finds_the_better_learning_rate(search_module: ModuleType) -> None:
    best = search_module.search()
    assert best.config["lr"] == 1e-3
    assert best.metrics["env_runners"]["episode_return_mean"] > -900
