"""Tables and summaries at 80 columns."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from envfleet.cli.app import app
from envfleet.cli.console import make_table

WIDTH = 80
NAME = "a-name-of-twenty-eight-signs"
RUN = f"--env CartPole-v1 -n 2 --backend serial --max-transitions 64 --out runs --name {NAME} -q"


def invoke(line: str) -> str:
    """Run a command in a terminal of this width; return what it prints."""
    runner = CliRunner(env={"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": str(WIDTH)})
    result = runner.invoke(app, shlex.split(line))
    assert result.exit_code == 0, result.output
    return result.stdout


def check_width(text: str) -> None:
    assert [line for line in text.splitlines() if len(line) > WIDTH or "…" in line] == []


@pytest.mark.parametrize(
    "line",
    [
        "bench CartPole-v1 -n 1,2 --backends serial,thread --seconds 0.01 --rounds 1",
        "doctor infos -n 2 --policy-latency-ms 1 --seconds 0.05",
        "envs cartpole",
    ],
)
def test_figures_fit_into_80_columns(line: str) -> None:
    text = invoke(line)
    assert len(text.splitlines()) > 3
    check_width(text)


def test_runs_and_evaluations_fit_into_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained = invoke(f"train {RUN}")
    assert "64 transitions" in trained
    evaluated, compared = invoke(f"evaluate runs/{NAME} --games 3"), invoke(f"tournament runs/{NAME} --games 3")
    assert re.search(r"CartPole-v1, 3 episodes each", evaluated)
    for text in (trained, evaluated, compared):
        check_width(text)


def test_long_texts_continue_and_numbers_stay_whole() -> None:
    file, path = io.StringIO(), "/".join(["a folder", "of some length"] * 4)
    table = make_table("player", "mean return", "95 % interval", "worst", "best")
    table.add_row(path, "-123456.78", "-1234567.12 to -123456.12", "-1234567.00", "9999.00")
    Console(file=file, width=WIDTH).print(table)
    text = file.getvalue()
    check_width(text)
    assert "-123456.78  -1234567.12 to -123456.12  -1234567.00  9999.00" in text
    folded = "".join(line[: WIDTH - 58] for line in text.splitlines()[1:])
    assert re.sub(r"\s", "", folded) == re.sub(r"\s", "", path)
