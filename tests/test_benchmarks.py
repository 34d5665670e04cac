"""The cases of `python -m benchmarks` can be loaded, run, reported and continued."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import ROOT, main
from benchmarks.case import Case, Record, Session, Trained, parse_options, start
from benchmarks.cases import CASES
from benchmarks.report import misses_floor, plot, read_json, table, write_json, write_page


def result_of(case: Case, *records: Record) -> Any:
    result = start(case, {}, "2026-01-01T00:00:00+00:00")
    result.records.extend(records)
    return result


@pytest.mark.parametrize("name", CASES)
def test_a_case_loads(name: str) -> None:
    defaults = CASES[name].options()
    assert CASES[name].describe().endswith(".")
    pairs = [(option, "1") for option in defaults]
    assert parse_options(defaults, pairs).keys() == defaults.keys()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.page])
def test_a_page_has_the_block_of_its_case(name: str) -> None:
    page = (ROOT / CASES[name].page).read_text(encoding="utf-8")
    assert page.count(f"<!-- benchmark {name} -->\n") == 2


def test_a_tiny_comparison(tmp_path: Path) -> None:
    # In a separate process, since Gymnasium's shared memory stays open until the end of the process.
    words = ["busy", "steps=2,3", "loops=0", "num_envs=2", "--rounds", "2"]
    files = ["--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "benchmarks", *words, *files]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| first 2 steps, 0 busy loops |" in done.stdout
    assert "| first 3 steps, 0 busy loops |" in done.stdout
    assert [len(one.records) for one in read_json(tmp_path / "a.json")] == [4]
    assert (tmp_path / "a.png").stat().st_size > 0


@pytest.mark.parametrize("words", [["nothing"], ["busy", "sizes=8"], ["busy", "steps=many"]])
def test_wrong_words_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)


def test_a_ratio_is_the_median_over_rounds() -> None:
    records = Record("8", "ours", [2.0, 9.0, 4.0]), Record("8", "theirs", [1.0, 1.0, 4.0])
    rates = Case("a", "", pairs={"ours": ("theirs",)}, floors={("ours", "theirs"): {"8": 3.0}})
    assert "| 8 | 4 | 2 × |" in table(rates, result_of(rates, *records))
    assert misses_floor(rates, result_of(rates, *records))
    costs = Case("a", "", is_cost=True, pairs={"ours": ("theirs",)})
    assert "| 8 | 4 | 0.5 × |" in table(costs, result_of(costs, *records))


def test_a_training_continues_with_the_missing_seeds(tmp_path: Path) -> None:
    seeds: list[int] = []

    def learn(seed: int) -> Trained:
        seeds.append(seed)
        return Trained(float(seed), [(1.0, 2.0)], {"updates": 3.0})

    case, file = Case("a", ""), tmp_path / "a.json"
    result = result_of(case)
    Session(result, 2, 0.1).train("CartPole", {"ours": learn})
    write_json(file, [result])
    (continued,) = read_json(file)
    Session(continued, 3, 0.1).train("CartPole", {"ours": learn})
    assert seeds == [0, 1, 2]
    assert continued.records[0].notes["updates"] == "3, 3, 3"
    assert "| CartPole | ours | 1 ± 1 |" in table(case, continued)
    plot([(case, continued)], tmp_path / "a.png")


def test_the_table_replaces_the_block_of_a_page(tmp_path: Path) -> None:
    mark = "<!-- benchmark a -->\n"
    (tmp_path / "page.md").write_text(f"before\n{mark}old\n{mark}after\n", encoding="utf-8")
    case = Case("a", "", page="page.md")
    text = write_page(case, result_of(case, Record("8", "ours", [1.0])), tmp_path).read_text(encoding="utf-8")
    assert "old" not in text
    assert text.startswith(f"before\n{mark}")
    assert text.endswith(f"{mark}after\n")
    assert "| 8 | ours | 1 |" in text
    (tmp_path / "page.md").write_text("no block", encoding="utf-8")
    with pytest.raises(ValueError, match="lacks a block"):
        write_page(case, result_of(case), tmp_path)
