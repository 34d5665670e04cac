"""What the machine grants."""

import sys

import pytest

from envfleet.bench import machine
from envfleet.bench.machine import cgroup_cores, describe_machine, require_psutil, usable_cores
from envfleet.errors import InvalidArgument


def test_cgroup_v2(tmp_path):
    assert cgroup_cores(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cgroup_cores(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cgroup_cores(tmp_path) is None
    (tmp_path / "cpu.max").write_text("rubbish")
    assert cgroup_cores(tmp_path) is None


def test_cgroup_v1(tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert cgroup_cores(tmp_path) == 0.5
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert cgroup_cores(tmp_path) is None


def test_usable_cores_take_the_smaller(monkeypatch):
    monkeypatch.setattr(machine, "affinity_cores", lambda: 8)
    monkeypatch.setattr(machine, "cgroup_cores", lambda: 1.5)
    assert usable_cores() == 1.5
    assert machine.whole_cores() == 1
    monkeypatch.setattr(machine, "cgroup_cores", lambda: None)
    assert usable_cores() == 8


def test_facts():
    facts = describe_machine(["gymnasium", "no-such-package"])
    assert facts.cores >= facts.usable_cores > 0
    assert "no-such-package" not in facts.versions
    assert facts.versions["gymnasium"]


def test_without_psutil(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(InvalidArgument, match="pip install psutil"):
        require_psutil()
