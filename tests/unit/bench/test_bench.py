"""The whole path once, in real processes."""

import pytest

from envfleet.bench.contenders import CONTENDERS
from envfleet.bench.rounds import Contest, run_contest
from envfleet.bench.workloads import resolve


@pytest.mark.timeout(900)  # each contender's process imports what it needs
def test_bench_end_to_end():
    names = ["loop", "gymnasium-async", "envfleet-process", "envfleet-auto"]
    texts = []
    contest = Contest(resolve("CartPole-v1"), 2, 2, [CONTENDERS[name] for name in names])
    run = run_contest(contest, 0.02, 2, lambda text, fraction: texts.append(text))
    assert [len(entry.rates) for entry in run.entries] == [2] * len(names), run.entries
    assert any("round 2 of 2" in text for text in texts)
