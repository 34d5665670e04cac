"""Contenders in their own processes: a faulty one is reported and the others go on."""

import dataclasses

from tests.unit.bench.fakes import FakeContender

from envfleet.bench.results import Report, Settings
from envfleet.bench.rounds import Case, run_case, run_cases
from envfleet.bench.workloads import synthetic

QUICK = Settings(seconds=0.01, rounds=3, warm_up_s=0.0, start_timeout_s=60.0, idle_s=0.05)
NULL = synthetic("NullEnv")


def ignore(text: str, fraction: float) -> None:
    assert 0.0 <= fraction <= 1.0, text


def test_faulty_contenders_are_reported_and_do_not_end_the_run():
    faults = ["", "absent", "make", "reset", "step", "close", "die"]
    case = Case(NULL, 2, None, [FakeContender(fault or "fine", fault) for fault in faults])
    entries = {entry.contender: entry for entry in run_case(case, QUICK, ignore).entries}
    assert [entry.status for entry in entries.values()] == [
        "ok",
        "absent",
        "failed",
        "failed",
        "failed",
        "ok",
        "failed",
    ]
    assert entries["absent"].reason == "planted absence"
    assert entries["make"].reason == "RuntimeError: planted in make"
    assert entries["step"].reason == "RuntimeError: planted in step"
    assert "exited with code 9" in entries["die"].reason
    assert entries["close"].close_s is None
    assert not entries["step"].samples


def test_a_measured_contender_has_all_its_figures():
    case = Case(NULL, 2, None, [FakeContender("fine")])
    entry = run_case(case, QUICK, ignore).entries[0]
    assert len(entry.samples) == QUICK.rounds
    for sample in entry.samples:
        assert sample.transitions == 2 * sample.vector_steps > 0
        assert sample.p50_us <= sample.p99_us
    assert entry.start_s is not None
    assert entry.close_s is not None
    assert entry.idle_cpu is not None
    assert entry.memory_bytes is not None


def test_the_report_so_far_is_told_after_every_run():
    cases = [Case(NULL, size, None, [FakeContender("fine")]) for size in (2, 3)]
    reports: list[Report] = []
    report = run_cases(cases, dataclasses.replace(QUICK, rounds=1), ignore, reports.append)
    assert [len(seen.runs) for seen in reports] == [1, 2]
    assert [run.num_envs for run in report.runs] == [2, 3]


def test_progress_rises_over_all_cases():
    fractions = []
    cases = [Case(NULL, 1, None, [FakeContender("fine", "absent")])] * 2
    report = run_cases(cases, dataclasses.replace(QUICK, rounds=1), lambda text, fraction: fractions.append(fraction))
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert len(report.runs) == 2
    assert "gymnasium" in report.machine.versions
