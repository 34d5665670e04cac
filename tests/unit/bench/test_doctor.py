"""Environments with a planted problem, and what the doctor says of them."""

import dataclasses
import io
import json
import subprocess
import sys

import pytest
from rich.console import Console
from tests.unit.bench import fakes
from tests.unit.bench.samples import facts

from envfleet.bench import doctor
from envfleet.bench.child import ChildFailed
from envfleet.bench.doctor import examine, probe_env
from envfleet.bench.findings import diagnose, show_diagnosis
from envfleet.bench.results import figures_json
from envfleet.bench.workloads import resolve


def codes(results):
    return [finding.code for finding in results]


def diagnose_env(name, **changes):
    """Measure a faulty environment in this process, within otherwise ordinary facts."""
    env_facts = probe_env({}, resolve(f"tests.unit.bench.fakes:{name}"), 0.05)
    return diagnose(dataclasses.replace(facts(**changes), env=env_facts)).findings


@pytest.fixture
def _clock(monkeypatch):
    """Let steps and resets take the time that the environment says, whatever else the machine does."""
    monkeypatch.setattr(doctor, "time", fakes.CLOCK)


@pytest.mark.usefixtures("_clock")
def test_slow_reset():
    finding = next(finding for finding in diagnose_env("slow_reset") if finding.code == "slow_reset")
    assert finding.gain > 2
    assert "batch_size" in finding.advice


def test_huge_observation():
    results = diagnose_env("huge_observation")
    assert "big_observation" in codes(results)
    finding = next(finding for finding in results if finding.code == "big_observation")
    assert "4.0 MB" in finding.title
    assert "float32" in finding.advice


def test_threads():
    results = diagnose_env("Threaded")
    finding = next(finding for finding in results if finding.code == "threads")
    assert "6 threads" in finding.title


@pytest.mark.usefixtures("_clock")
def test_slow_wrapper():
    results = diagnose_env("slowly_wrapped")
    finding = next(finding for finding in results if finding.code == "slow_wrapper")
    assert "SlowWrapper" in finding.title


def test_observations_without_a_shape():
    assert "object_observation" in codes(diagnose_env("ragged"))


def test_infos_are_counted():
    measured = probe_env({}, resolve("infos", {"num_keys": 40}), 0.05)
    assert measured.num_infos == 40


@pytest.mark.usefixtures("_clock")
def test_a_running_episode_does_not_count():
    measured = probe_env({}, resolve("tests.unit.bench.fakes:slow_episodes"), 0.05)
    assert measured.episode_steps == 30


def test_wrappers_are_listed_outermost_first():
    measured = probe_env({}, resolve("CartPole-v1"), 0.02)
    assert list(measured.wrappers) == ["TimeLimit", "OrderEnforcing", "PassiveEnvChecker"]


def test_each_layer_gets_actions_of_its_own_space():
    measured = probe_env({}, resolve("tests.unit.bench.fakes:of_other_actions"), 0.02)
    assert list(measured.wrappers)[:2] == ["TransformAction", "TimeLimit"]


def test_an_env_that_cannot_be_built():
    with pytest.raises(ChildFailed, match="planted in the constructor"):
        examine(resolve("tests.unit.bench.fakes:broken"), 2, progress=lambda text, fraction: None)


def test_nice_workers_of_a_ray_cluster_are_found(tmp_path):
    names = tmp_path / "fake.py"
    names.write_text("import os; os.nice(7); print(flush=True); input()")
    with subprocess.Popen(
        ["ray::IDLE", names], executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        assert doctor.find_ray_niceness() >= 7
        worker.communicate(b"\n")


def test_a_whole_examination():
    fractions = []
    found_facts = examine(
        resolve("infos"), 2, 1, policy_s=0.001, seconds=0.05, progress=lambda text, fraction: fractions.append(fraction)
    )
    assert fractions == sorted(fractions)
    diagnosis = diagnose(found_facts)
    assert "fleet_failed" not in codes(diagnosis.findings)
    data = json.loads(figures_json("doctor", diagnosis))
    assert (data["kind"], data["schema_version"]) == ("envfleet.doctor", 1)
    assert data["facts"]["env"]["num_infos"] == 3
    file = io.StringIO()
    show_diagnosis(diagnosis, Console(file=file, width=100))
    text = file.getvalue()
    for words in ("One envfleet-bench/Info-v0", "envfleet serial", "Limit of 1 core", "The policy takes", "1. "):
        assert words in text


def test_a_twin_is_measured_beside_the_environment():
    examined = examine(resolve("CartPole-v1"), 2, 1, seconds=0.05, progress=lambda text, fraction: None)
    assert examined.kernel == "envfleet/CartPole-v1"
    assert examined.step_s("kernel") is not None
    assert examined.step_s("serial") is not None
    assert not any(entry.problem for entry in examined.run.entries)
