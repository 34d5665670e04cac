"""Tables and summaries at 80 columns."""

from __future__ import annotations

import io
import re
import shlex
import sys

import pytest
from rich.console import Console
from tests.terminal import TERMINAL, drawn_lines
from typer.testing import CliRunner

from envfleet.cli.app import app
from envfleet.cli.console import make_table, progress_bar

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


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TERMINAL.items():
        monkeypatch.setenv(name, value)


def test_progress_is_not_written_to_pipes(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as show:
        show("3 of 7 episodes", 0.5)
        print("of the environment")
    assert capsys.readouterr() == ("of the environment\n", "")


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("text", ["3 of 7 episodes", "/long/path" * 20])
def test_the_bar_and_the_time_are_whole_in_80_columns(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as show:
        show(text, 0.5)
    last = drawn_lines(capsys.readouterr().err)[-1]
    assert len(last) <= WIDTH
    assert re.fullmatch(r"━{12} +0:00:00 .{15,}", last)


@pytest.mark.usefixtures("terminal")
def test_redirected_output_stays_out_of_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar():
        print("of the environment")
        print("a warning", file=sys.stderr)
    written = capsys.readouterr()
    assert written.out == "of the environment\n"
    assert "a warning" in drawn_lines(written.err)
