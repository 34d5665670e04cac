"""`envfleet train` and `envfleet plot`, as a person types them."""

from __future__ import annotations

import contextlib
import io
import json
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console
from tests.unit.cli.test_console import check_width
from tests.unit.cli.test_console import invoke as invoke_narrow
from typer.testing import CliRunner, Result

from envfleet import training
from envfleet.cli.app import app
from envfleet.cli.reports import show_result
from envfleet.training.config import parse_config, read_config
from envfleet.training.plan import resolve

CONFIG: dict[str, Any] = {
    "curriculum": {
        "phases": [
            {
                "name": "balance",
                "transitions": 256,
                "environment": {"id": "CartPole-v1"},
                "opponent": {"type": "none"},
            }
        ]
    },
    "training": {"rollout_steps": 32, "eval_games": 2},
    "agent": {"type": "PPO", "hyperparameters": {"hidden": [8], "num_epochs": 1}},
}


@pytest.fixture(scope="session", autouse=True)
def _polars_runtime() -> None:
    """Polars opens the descriptors of its runtime with the first file that it reads."""
    pl.read_csv(io.BytesIO(b"a\n1\n"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "pole.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return path


def invoke(*arguments: object) -> Result:
    runner = CliRunner(env={"NO_COLOR": "1", "TERM": "dumb"})
    return runner.invoke(app, [str(argument) for argument in arguments])


def flat(text: str) -> str:
    """Take a panel's frame and line breaks away."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", text)


def test_a_run_is_trained_and_plotted(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    result = invoke("train", config, "-n", 4, "--backend", "serial", "--out", out, "--name", "mine", "--seed", 7)
    assert result.exit_code == 0, result.output
    assert "mine begins: PPO" in result.stderr
    assert "mine has completed its curriculum" in result.stdout
    assert "256 transitions" in result.stdout
    assert "mean return" in result.stdout  # of the evaluation
    assert read_config(out / "mine" / "config.json").seed == 7
    drawn = invoke("plot", out / "mine", "--out", tmp_path / "figures")
    assert drawn.exit_code == 0
    files = [Path(line) for line in drawn.stdout.splitlines()]
    assert tmp_path / "figures" / "losses.png" in files
    assert all(file.is_file() for file in files)


def test_summaries_and_evaluations_fit_into_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "a-name-of-twenty-eight-signs"
    trained = invoke_narrow(
        f"train --env CartPole-v1 -n 2 --backend serial --max-transitions 64 --out runs --name {name} -q"
    )
    assert "64 transitions" in trained
    evaluated = invoke_narrow(f"evaluate runs/{name} --games 3")
    assert "CartPole-v1, 3 episodes each" in evaluated
    for text in (trained, evaluated, invoke_narrow(f"tournament runs/{name} --games 3")):
        check_width(text)


def test_a_run_that_was_stopped_goes_on(config: Path, tmp_path: Path) -> None:
    stopped = invoke("train", config, "-n", 4, "--out", tmp_path, "--name", "mine", "--max-transitions", 64, "-q")
    assert (stopped.exit_code, stopped.exception) == (0, None)
    assert f"Continue     envfleet train --resume {tmp_path / 'mine'}" in stopped.stdout
    resumed = invoke("train", "--resume", tmp_path / "mine", "-q")
    assert "has completed its curriculum" in resumed.stdout
    assert "256 transitions" in resumed.stdout


def test_an_interrupted_run_says_so_in_one_line(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = training.RunResult(
        run_name="mine", run_dir=tmp_path / "mine", reason="interrupted", total_steps=12_345, total_episodes=1,
        total_updates=1, mean_reward=0.0, evaluation={}, rating=None,
        steps_per_s=1.0, seconds={}, checkpoint=None, best_checkpoint=None,
    )  # fmt: skip
    monkeypatch.setattr(training, "train", lambda config, **options: result)
    shown = invoke("train", config, "-q")
    assert shown.exit_code == 130
    line = (
        f"Interrupted after 12,345 transitions; the run is saved. Continue: envfleet train --resume {tmp_path / 'mine'}"
    )
    assert shown.stdout.strip() == line


@contextlib.contextmanager
def small_disk(size_bytes: int) -> Iterator[None]:
    """Let no file be larger, so that writing one fails as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_names_the_file_and_what_to_do(config: Path, tmp_path: Path) -> None:
    arguments = ("train", config, "-n", 4, "--backend", "serial", "--out", tmp_path, "--max-transitions", 64, "-q")
    with small_disk(10_000):
        full = invoke(*arguments, "--name", "first")
    assert full.exit_code == 2
    said = flat(full.stderr).replace(" ", "")  # as a panel breaks paths anywhere
    assert "first/resume.ptcannotbewritten(Filetoolarge):freesomediskspace,thenstarttherunagain:nocheckpoint" in said

    assert invoke(*arguments, "--name", "mine").exit_code == 0
    with small_disk(10_000):
        full = invoke("train", "--resume", tmp_path / "mine", "--max-transitions", 128, "-q")
    said = flat(full.stderr).replace(" ", "")
    assert "mine/resume.ptcannotbewritten(Filetoolarge):freesomediskspace,thencontinuefromitslastcheckpoint:" in said
    resumed = invoke("train", "--resume", tmp_path / "mine", "--max-transitions", 128, "-q")
    assert "128 transitions" in resumed.stdout


def test_a_run_that_ended_before_its_first_episode_has_no_return(tmp_path: Path) -> None:
    result = training.RunResult(
        run_name="mine", run_dir=tmp_path / "mine", reason="max_transitions", total_steps=8, total_episodes=0,
        total_updates=0, mean_reward=float("nan"), evaluation={}, rating=None,
        steps_per_s=1.0, seconds={}, checkpoint=None, best_checkpoint=None,
    )  # fmt: skip
    text = io.StringIO()
    show_result(result, Console(file=text, width=100))
    assert "8 transitions, 0 episodes" in text.getvalue()
    assert "nan" not in text.getvalue()


def test_games_are_shown_with_their_intervals(tmp_path: Path) -> None:
    rates = {"win_rate": 0.9, "draw_rate": 0.06, "loss_rate": 0.04, "win_rate_low": 0.85, "win_rate_high": 0.94}
    result = training.RunResult(
        run_name="mine", run_dir=Path("runs/mine"), reason="max_minutes", total_steps=5_000_000, total_episodes=40_000,
        total_updates=900, mean_reward=7.5,
        evaluation={"basic_strong": {**rates, "games": 200.0}}, rating=31.23, steps_per_s=80_000.0,
        seconds={"act": 20.0, "env": 30.0, "wait": 0.0, "update": 50.0, "evaluation": 0.1},
        checkpoint=Path("runs/mine/checkpoints/1.pt"), best_checkpoint=Path("runs/mine/checkpoints/best.pt"),
    )  # fmt: skip
    text = io.StringIO()
    show_result(result, Console(file=text, width=120))
    shown = flat(text.getvalue())
    assert "mine has used its time" in shown
    assert "basic_strong 90.0% 6.0% 4.0% 85.0% to 94.0% 200" in shown
    assert "Rating 31.2 (strong has 25)" in shown
    assert "Time: learning 50%, environment 30%, acting 20% " in shown
    assert "Best agent runs/mine/checkpoints/best.pt" in shown


def test_the_whole_configuration_is_printed(config: Path) -> None:
    printed = invoke("train", config, "--print-config")
    content = json.loads(printed.stdout)
    assert content["agent"]["hyperparameters"]["num_minibatches"] == 8
    assert content["training"]["reward_scale"] == 1.0
    whole = parse_config(content)
    assert resolve(whole).agent_config == resolve(parse_config({**CONFIG, "training": {}})).agent_config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no CONFIG is given: pass one of curriculum_base, "),
        (("CONFIG", "--resume", "runs/mine"), "--resume continues with the settings of the run: leave out CONFIG"),
        (("--resume", "runs/mine", "-n", 4, "--seed", 1), "with the settings of the run: leave out --num-envs, --seed"),
        (("--resume", "runs/mine", "--print-config"), "with the settings of the run: leave out --print-config"),
        (("--resume", "runs/none"), "runs/none is not the folder of a run, as config.json is missing"),
        (("no.json",), "no.json cannot be read (No such file or directory)"),
        (("CONFIG", "--engine", "bullet"), "engine='bullet', but 'CartPole-v1' has no engines: leave it out"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_a_panel(arguments: tuple[object, ...], message: str, config: Path) -> None:
    result = invoke("train", *(config if argument == "CONFIG" else argument for argument in arguments))
    assert result.exit_code == 2
    assert message in flat(result.stderr)


def test_a_demo_of_another_game_is_refused_before_training(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It trained for a minute, and then failed to play hockey with what it had trained."""
    monkeypatch.setattr("envfleet.training.train", lambda *_, **__: pytest.fail("it trains"))
    monkeypatch.setattr("envfleet.cli.demo._untrained", lambda _: pytest.fail("it makes an agent"))
    result = invoke("demo", config)
    assert result.exit_code == 2
    assert "trains in 'CartPole-v1', but the demo plays hockey: pass a configuration for hockey" in flat(result.stderr)


def test_an_environment_is_trained_in_without_a_file(tmp_path: Path) -> None:
    options = ("--env", "CartPole-v1", "--agent", "DDDQN", "--max-transitions", 64)
    printed = json.loads(invoke("train", *options, "--print-config").stdout)
    (phase,) = printed["curriculum"]["phases"]
    assert (phase["environment"]["id"], phase["transitions"], printed["agent"]["type"]) == ("CartPole-v1", 64, "DDDQN")
    assert printed["training"]["warmup_steps"] == 6
    result = invoke("train", *options, "--num-envs", 2, "--out", tmp_path, "--name", "pole", "--quiet")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "pole" / "checkpoints" / "000000000064.pt").exists()
    for wrong, message in (
        (("quickstart", "--env", "CartPole-v1"), "CONFIG sets the environment and the agent: leave out --env"),
        (("--env", "CartPole-v1", "--agent", "Sac"), "agent.type is 'Sac', expected one of"),
        ((), "a JSON file, --env ID, or --resume RUN"),
        (("--env", "CartPole-v1", "--resume", tmp_path / "pole"), "with the settings of the run: leave out --env"),
    ):
        refused = invoke("train", *wrong)
        assert (refused.exit_code, message in flat(refused.stderr)) == (2, True), refused.stderr


def test_a_game_for_two_trains_against_itself_with_arguments(tmp_path: Path) -> None:
    options = ("--env", "hockey", "-a", "starter=2", "--max-transitions", 64, "-n", 4, "--out", tmp_path, "-q")
    printed = json.loads(invoke("train", *options, "--print-config").stdout)
    (phase,) = printed["curriculum"]["phases"]
    assert phase["environment"]["kwargs"] == {"keep_mode": True, "starter": 2}
    assert phase["opponent"]["type"] == "self_play"
    result = invoke("train", *options)
    assert result.exit_code == 0, result.output
    refused = invoke("train", "quickstart", "-a", "starter=2")
    assert "sets the environment and the agent: leave out --env-arg" in flat(refused.stderr)


def test_a_finished_run_is_trained_on(config: Path, tmp_path: Path) -> None:
    arguments = ("train", config, "--out", tmp_path, "--name", "mine", "-q")
    assert invoke(*arguments).exit_code == 0
    before = max(int(path.stem) for path in (tmp_path / "mine" / "checkpoints").glob("0*.pt"))
    resumed = invoke("train", "--resume", tmp_path / "mine", "--max-transitions", before + 100, "-q")
    assert resumed.exit_code == 0, resumed.output
    assert before + 100 <= max(int(path.stem) for path in (tmp_path / "mine" / "checkpoints").glob("0*.pt"))
    more = invoke("train", config, "--out", tmp_path, "--name", "more", "--weights", tmp_path / "mine", "-q")
    assert more.exit_code == 0, more.output
    read = json.loads((tmp_path / "more" / "config.json").read_text())
    assert read["agent"]["checkpoint_path"] == str(tmp_path / "mine")
