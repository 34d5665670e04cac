"""The whole path once, in real processes."""

import pytest

from envfleet.bench.bench import bench
from envfleet.bench.results import Settings
from envfleet.bench.workloads import resolve
from envfleet.errors import InvalidArgument


def test_nobody_to_measure():
    with pytest.raises(InvalidArgument, match="--backends or --peers"):
        bench(resolve("CartPole-v1"), [2], [2], [], Settings(), lambda text, fraction: None)


def test_bench_end_to_end():
    settings = Settings(seconds=0.02, rounds=2, warm_up_s=0.0, idle_s=0.02)
    contenders = ["loop", "gymnasium-sync", "gymnasium-async", "envfleet-serial", "envfleet-process", "envfleet-auto"]
    texts = []
    report = bench(resolve("CartPole-v1"), [2], [2], contenders, settings, lambda text, fraction: texts.append(text))
    assert [entry.status for entry in report.runs[0].entries] == ["ok"] * len(contenders), report.runs[0].entries
    assert any("round 2 of 2" in text for text in texts)
    assert all(entry.close_s is not None for entry in report.runs[0].entries)
