"""Contenders in separate processes: a faulty one is reported, and the others are measured."""

import pytest
from tests.unit.bench.fakes import NULL, FakeContender

from envfleet.bench.child import ChildFailed
from envfleet.bench.contenders import CONTENDERS
from envfleet.bench.rounds import Contest, in_rounds, require_buildable, run_contest, run_contests, share_of_time
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
    assert len(entry.cpu_s) == ROUNDS
    assert min(entry.cpu_s) > 0
    assert entry.start_s is not None
    assert entry.memory_bytes is not None


def test_all_measurements_together_take_half_a_minute_at_most() -> None:
    contests = [Contest(NULL, 2, None, [FakeContender("fine")] * 10)] * 3
    assert share_of_time(contests[:1], 3) == 0.5
    assert share_of_time(contests, 3) * 90 < 30
    assert share_of_time(contests * 100, 3) == 0.05


def test_every_contender_has_a_turn_in_every_round() -> None:
    turns = list(in_rounds("abc", 20))
    assert [index for index, _ in turns] == sorted([*range(20)] * 3)
    orders = {"".join(name for index, name in turns if index == number) for number in range(20)}
    assert {frozenset(order) for order in orders} == {frozenset("abc")}
    assert len(orders) > 1


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
