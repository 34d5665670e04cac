"""Every command of README.md and of the first page of the documentation runs, with a small budget and offline."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import headlines
from tests.docs.test_example_programs import LIMIT_S
from tests.docs.test_examples import ROOT, blocks_of

README = ROOT / "README.md"
PAGES = (README, ROOT / "docs" / "index.md")
BUDGETS = {
    "bench": "--seconds 0.02 --rounds 1",
    "train": "--max-transitions 400",
    "evaluate": "--games 10",
    "watch": "--games 1",
}
"""Options that are appended to a command; the last value of an option counts."""

OFFLINE = "--no-deps --no-index --no-build-isolation --no-compile --disable-pip-version-check"


def commands() -> list[str]:
    blocks = [block for page in PAGES for block in blocks_of(page.read_text(encoding="utf-8"))]
    lines = [line for block in blocks if block.info == "console" for line in block.lines if line.startswith("$ ")]
    return list(dict.fromkeys(line.removeprefix("$ ") for line in lines))


@pytest.mark.timeout(LIMIT_S + 20.0)
@pytest.mark.parametrize("line", commands())
def test_a_command_of_a_front_page_runs(line: str, tmp_path: Path) -> None:
    program, verb, *rest = shlex.split(line, comments=True)
    if program == "pip":
        command, folder = ["pip", verb, *OFFLINE.split(), "--target", str(tmp_path / "site"), *rest], ROOT
    else:
        assert program == "envfleet", line
        command, folder = ["envfleet", verb, *rest, *BUDGETS[verb].split()], tmp_path
    ran = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "does not provide the extra" not in ran.stderr


def test_the_headlines_are_those_of_the_benchmarks_page() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert README.read_text(encoding="utf-8").split(headlines.MARK)[1].strip() == headlines.headline_table(page).strip()


def test_the_plot_shows_the_rates_of_the_benchmarks_page(tmp_path: Path) -> None:
    rates = headlines.task_rates((ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8"))
    assert list(rates) == ["HalfCheetah-v5", "Hopper-v5", "Ant-v5", "Humanoid-v5"]
    assert all(list(row) == ["envfleet", "EnvPool", "SyncVectorEnv", "AsyncVectorEnv"] for row in rates.values())
    headlines.draw_rates(rates, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_the_sizes_of_extras_are_those_of_the_installation_page() -> None:
    page = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    rows = [(row[0], row[1], row[2]) for row in headlines.read_rows(page, "| MB |")[1:]]
    sizes = {re.sub(r"envfleet\[?|\]", "", name): size for name, note, size in rows if "CUDA" not in note}
    table = headlines.read_rows(README.read_text(encoding="utf-8"), "| extra |")[1:]
    cells = [pair for row in table for pair in zip(row[1].split(";"), row[2].split(";"), strict=True)]
    expected = [sizes.get(extra.strip(" `"), "–") for extra, _ in cells]
    assert [size.strip() for _, size in cells] == expected
    assert "–" in expected  # `dev` is not measured
