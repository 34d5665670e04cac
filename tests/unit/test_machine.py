"""Cores that the scheduler and the control group grant."""

from __future__ import annotations

from pathlib import Path

import pytest

from envfleet import machine
from envfleet.backends import plan_workers
from envfleet.kernels.threads import Team
from envfleet.machine import cgroup_cores, usable_cores, whole_cores
from envfleet.options import Options


def test_cgroup_v2(tmp_path: Path) -> None:
    assert cgroup_cores(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cgroup_cores(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cgroup_cores(tmp_path) is None
    (tmp_path / "cpu.max").write_text("rubbish")
    assert cgroup_cores(tmp_path) is None


def test_cgroup_v1(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert cgroup_cores(tmp_path) == 0.5
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert cgroup_cores(tmp_path) is None


def test_usable_cores_take_the_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "affinity_cores", lambda: 8)
    monkeypatch.setattr(machine, "cgroup_cores", lambda: 1.5)
    assert usable_cores() == 1.5
    assert whole_cores() == 1
    monkeypatch.setattr(machine, "cgroup_cores", lambda: None)
    assert usable_cores() == 8


def test_a_container_limits_threads_and_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "affinity_cores", lambda: 64)
    monkeypatch.setattr(machine, "cgroup_cores", lambda: 2.0)
    assert Team(1_000_000).most == 2
    assert plan_workers(Options(backend="process"), 8, reason="").envs_per_worker == (4, 4)
