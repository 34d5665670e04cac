"""The whole path once, in real processes."""

import pytest

from envfleet.bench.contenders import find_contenders
from envfleet.bench.results import Settings
from envfleet.bench.rounds import Case, run_case
from envfleet.bench.workloads import resolve
from envfleet.errors import InvalidArgument


def test_nobody_to_measure():
    with pytest.raises(InvalidArgument, match="--backends or --peers"):
        find_contenders([])


def test_bench_end_to_end():
    settings = Settings(seconds=0.02, rounds=2, warm_up_s=0.0, idle_s=0.02)
    names = ["loop", "gymnasium-sync", "gymnasium-async", "envfleet-serial", "envfleet-process", "envfleet-auto"]
    texts = []
    case = Case(resolve("CartPole-v1"), 2, 2, find_contenders(names))
    run = run_case(case, settings, lambda text, fraction: texts.append(text))
    assert [entry.status for entry in run.entries] == ["ok"] * len(names), run.entries
    assert any("round 2 of 2" in text for text in texts)
    assert all(entry.close_s is not None for entry in run.entries)
