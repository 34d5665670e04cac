"""Tables and summaries at 80 columns."""

from __future__ import annotations

import io
import re
import shlex

import pytest
from rich.console import Console
from typer.testing import CliRunner

from envfleet.cli.app import app
from envfleet.cli.console import make_table

WIDTH = 80


def invoke(line: str) -> str:
    """Run a command in a terminal of this width; return what it prints."""
    runner = CliRunner(env={"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": str(WIDTH)})
    result = runner.invoke(app, shlex.split(line))
    assert result.exit_code == 0, result.output
    return result.stdout


def check_width(text: str) -> None:
    """Check that no line is too long, and that no word is cut."""
    assert [line for line in text.splitlines() if len(line) > WIDTH or re.search(r"\w…", line)] == []


@pytest.mark.parametrize(
    "line",
    [
        "bench CartPole-v1 -n 2 --backends serial,thread --peers loop,gymnasium-async --seconds 0.01 --rounds 1",
        "doctor infos -n 2 --policy-latency-ms 1 --seconds 0.05",
        "envs cartpole",
    ],
)
def test_figures_fit_into_80_columns(line: str) -> None:
    text = invoke(line)
    assert len(text.splitlines()) > 3
    check_width(text)


def test_long_texts_continue_and_numbers_stay_whole() -> None:
    file, path = io.StringIO(), "/".join(["a folder", "of some length"] * 4)
    table = make_table("player", "mean return", "95 % interval", "worst", "best")
    table.add_row(path, "-123456.78", "-1234567.12 to -123456.12", "-1234567.00", "9999.00")
    Console(file=file, width=WIDTH).print(table)
    text = file.getvalue()
    check_width(text)
    assert "-123456.78  -1234567.12 to -123456.12  -1234567.00  9999.00" in text
    lines = text.splitlines()[1:]
    folded = "".join(line[: lines[0].index("-123456.78")] for line in lines)
    assert re.sub(r"\s", "", folded) == re.sub(r"\s", "", path)
