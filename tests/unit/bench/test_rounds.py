"""Contenders in separate processes: a faulty one is reported, and the others are measured."""

import pytest
from tests.unit.bench.fakes import NULL, FakeContender

from envfleet.bench.child import ChildFailed
from envfleet.bench.contenders import CONTENDERS
from envfleet.bench.results import Report
from envfleet.bench.rounds import Contest, require_buildable, run_contest, run_contests
from envfleet.bench.workloads import resolve

SECONDS, ROUNDS = 0.01, 3


def ignore(text: str, fraction: float) -> None:
    assert 0.0 <= fraction <= 1.0, text


def test_faulty_contenders_are_reported_and_do_not_end_the_run():
    faults = ["", "absent", "make", "step", "close", "die"]
    contest = Contest(NULL, 2, None, [FakeContender(fault or "fine", fault) for fault in faults])
    entries = {entry.contender: entry for entry in run_contest(contest, SECONDS, ROUNDS, ignore).entries}
    assert [name for name, entry in entries.items() if entry.rates] == ["fine", "close"]
    assert entries["absent"].problem == "planted absence"
    assert entries["make"].problem == "RuntimeError: planted in make"
    assert entries["step"].problem == "RuntimeError: planted in step"
    assert "exited with code 9" in entries["die"].problem
    assert len(entries["close"].rates) == ROUNDS
    assert not entries["step"].rates


def test_a_measured_contender_has_all_its_figures():
    contest = Contest(NULL, 2, None, [FakeContender("fine")])
    entry = run_contest(contest, SECONDS, ROUNDS, ignore).entries[0]
    assert len(entry.rates) == ROUNDS
    assert min(entry.rates) > 0
    assert entry.start_s is not None
    assert entry.memory_bytes is not None


def test_the_report_so_far_is_passed_on_after_every_run():
    contests = [Contest(NULL, size, None, [FakeContender("fine")]) for size in (2, 3)]
    reports: list[Report] = []
    report = run_contests(contests, SECONDS, 1, ignore, reports.append)
    assert [len(seen.runs) for seen in reports] == [1, 2]
    assert [run.num_envs for run in report.runs] == [2, 3]


def test_progress_rises_over_all_cases():
    fractions = []
    contests = [Contest(NULL, 1, None, [FakeContender("fine", "absent")])] * 2
    report = run_contests(contests, SECONDS, 1, lambda text, fraction: fractions.append(fraction))
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert len(report.runs) == 2
    assert "gymnasium" in report.machine.versions


def test_an_unbuildable_environment_is_reported_first():
    with pytest.raises(ChildFailed, match="planted in the constructor"):
        require_buildable(resolve("tests.unit.bench.fakes:broken"))


@pytest.mark.timeout(900)  # each contender's process imports what it needs
def test_bench_end_to_end():
    names = ["loop", "gymnasium-async", "envfleet-process", "envfleet-auto"]
    texts = []
    contest = Contest(resolve("CartPole-v1"), 2, 2, [CONTENDERS[name] for name in names])
    run = run_contest(contest, 0.02, 2, lambda text, fraction: texts.append(text))
    assert [len(entry.rates) for entry in run.entries] == [2] * len(names), run.entries
    assert any("round 2 of 2" in text for text in texts)
