"""Progress of a run, as a bar and as lines."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from tests.unit.training.records import played

from envfleet.training.events import Evaluating, Event, Learned, Progress
from envfleet.training.records import ProgressBar


def shown(*events: Event, is_terminal: bool, width: int = 80) -> str:
    """Return the text of the progress bar without colors."""
    text = io.StringIO()
    bar = ProgressBar(
        Console(file=text, force_terminal=is_terminal, color_system="standard", width=width, legacy_windows=False)
    )
    played.notify([bar], *events)
    bar.close()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.getvalue())


def test_the_bar_shows_where_the_run_is() -> None:
    text = shown(played.begin(), *played.rounds(last=80), is_terminal=True)
    for part in ("a run begins: SAC, 2 sub-environments", "games 2/2", "12,800", "won", "loss", "left", "79%"):
        assert part in text


def test_the_bar_shows_that_an_evaluation_is_under_way() -> None:
    last = [*played.rounds(last=80)][-1]
    where = {name: getattr(last, name) for name in ("transitions", "episodes", "updates", "phase", "phase_name")}
    text = shown(played.begin(), *played.rounds(last=80), Evaluating(**where), is_terminal=True)
    assert text.rstrip().endswith("evaluating at 12,800")


def test_names_with_brackets_are_shown_as_they_are() -> None:
    begun = dataclasses.replace(played.begin(), run_name="run[a]", folder=Path("runs[b]"))
    progress = next(event for event in played.rounds(last=80) if isinstance(event, Progress))
    text = shown(begun, dataclasses.replace(progress, phase_name="[c] first"), is_terminal=True)
    assert "run[a] begins" in text
    assert "runs[b]" in text
    assert "[c] first 1/2" in text


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_longest_figures_are_whole_in_80_columns(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.training.records.progress._LINE_EVERY_S", 0.0)
    begun = dataclasses.replace(played.begin(), phases=("a phase of a long name", "mixed modes and opponents") * 6)
    rounds = [event for event in played.rounds() if not isinstance(event, Progress)]
    long = Progress(
        transitions=1_234_567_890, episodes=12_345_678, updates=1, phase=11, phase_name=begun.phases[-1],
        run_share=0.1234, steps_per_s=1_234_567.0, elapsed_s=86_399.0, times=played.TIMES,
        latest={"return": -12_345.67, "win_rate": 1.0},
    )  # fmt: skip
    lossy = Learned(figures={"critic_loss": -1.234e-05}, transitions=1, episodes=1, updates=1, phase=1, phase_name="a")
    text = shown(begun, *rounds, lossy, long, is_terminal=is_terminal)
    assert max(map(len, text.splitlines())) <= 80
    whole = re.sub(r"\s+", " ", text)
    for part in ("modes", "opponents", "1,234,567,890", "12,345,678", "1,234,567", "-1.23e-05", "12% in 23:59:59"):
        assert part in whole, text


def test_without_a_terminal_evaluations_are_lines() -> None:
    lines = shown(played.begin(), *played.rounds(), played.end(), is_terminal=False).splitlines()
    assert lines[0] == "a run begins: SAC, 2 sub-environments"
    assert lines[1] == "evaluated at 3,200: won 33.3% against weak, 21.4% against strong, rating 21.9"
    assert len(lines) == 6


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.training.records.progress._LINE_EVERY_S", 0.0)
    lines = shown(played.begin(transitions=1), *played.rounds(last=3), is_terminal=False, width=200).splitlines()
    assert lines[0].startswith("a run continues")
    assert lines[-1].startswith("2% in 0:00:00, 0:00:10 left, phase shooting 1/2, transitions 480, steps/s ")
