"""Ratios, and the JSON they come from."""

import json
import sys

import pytest
from tests.unit.bench.samples import entry, report, run

from envfleet.bench.measure import require_psutil
from envfleet.bench.results import ContenderResult, Run, describe_machine, figures_json
from envfleet.errors import MissingDependency


def test_a_ratio_is_the_median_of_the_ratios_of_each_round():
    # The machine halves in speed in the second round and recovers: within each round ours is 3, 4 and 2 times theirs.
    one = run(entry("ours", 300, 200, 200), entry("theirs", 100, 50, 100))
    assert one.ratio("ours", "theirs") == 3.0
    assert one.ratio("theirs", "ours") == pytest.approx(1 / 3)


def test_a_ratio_with_somebody_who_was_not_measured_is_none():
    failed = entry("theirs")
    assert run(entry("ours", 300), failed).ratio("ours", "theirs") is None
    assert run(entry("ours", 300)).ratio("ours", "theirs") is None


def test_median_and_spread():
    one = entry("ours", 100, 400, 200)
    assert one.rate == 200
    assert one.spread == (100, 400)


def test_of_five_the_most_extreme_do_not_count():
    assert entry("ours", 1, 100, 400, 200, 10_000).spread == (100, 400)


def test_json_has_the_documented_form():
    data = json.loads(figures_json("bench", report(run(entry("loop", 100)))))
    assert list(data) == ["kind", "schema_version", "started_at", "machine", "seconds", "runs"]
    assert (data["kind"], data["schema_version"]) == ("envfleet.bench", 1)
    assert list(data["runs"][0]) == ["workload", "env", "num_envs", "workers", "entries"]
    assert data["runs"][0]["entries"][0]["rates"] == [100]


def test_the_machine_is_described():
    facts = describe_machine(["gymnasium", "no-such-package"])
    assert facts.cores >= facts.usable_cores > 0
    assert "no-such-package" not in facts.versions
    assert facts.versions["gymnasium"]


def test_without_psutil(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(MissingDependency, match=r"pip install 'envfleet\[cli\]'"):
        require_psutil()


def test_a_report_shows_itself_in_a_notebook():
    rated = ContenderResult(rates=(90.0, 100.0, 110.0), contender="a", label="A & B")
    failed = ContenderResult(rates=(), contender="b", label="B", problem="no memory")
    shown = Run("cartpole", "CartPole-v1", 4, None, (failed, rated))._repr_html_()
    assert "<caption>4 × CartPole-v1</caption>" in shown
    assert "<td>A &amp; B</td><td>100</td><td>90 to 110</td>" in shown
    assert "<td>B</td><td>not measured</td><td>no memory</td>" in shown
