"""Environments with a planted problem, and what the doctor says of them."""

import dataclasses
import io
import json

import pytest
from rich.console import Console
from tests.unit.bench import fakes
from tests.unit.bench.samples import facts

from envfleet.bench import doctor
from envfleet.bench.child import ChildFailed
from envfleet.bench.doctor import examine, probe_env
from envfleet.bench.findings import diagnose, show_diagnosis, straggler_loss
from envfleet.bench.results import figures_json
from envfleet.bench.workloads import resolve


def codes(found):
    return [finding.code for finding in found]


def findings(**changes):
    """Diagnose an ordinary machine and environment, changed as asked."""
    return diagnose(facts(**changes)).findings


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
    found = diagnose_env("huge_observation")
    assert "big_observation" in codes(found)
    finding = next(finding for finding in found if finding.code == "big_observation")
    assert "4.0 MB" in finding.title
    assert "float32" in finding.advice


def test_threads():
    found = diagnose_env("Threaded")
    finding = next(finding for finding in found if finding.code == "threads")
    assert "6 threads" in finding.title


@pytest.mark.usefixtures("_clock")
def test_slow_wrapper():
    found = diagnose_env("slowly_wrapped")
    finding = next(finding for finding in found if finding.code == "slow_wrapper")
    assert "SlowWrapper" in finding.title


def test_observations_without_a_shape():
    assert "object_observation" in codes(diagnose_env("ragged"))


def test_many_infos():
    measured = probe_env({}, resolve("infos", {"num_keys": 40}), 0.05)
    assert measured.num_infos == 40
    assert "many_infos" in codes(findings(num_infos=40.0))
    assert "many_infos" not in codes(findings(num_infos=3.0))


def test_too_cheap_for_processes():
    found = findings(step_s=5e-6, reset_s=1e-6, fleet={"serial": 120_000.0, "process": 60_000.0})
    assert found[0].code == "too_cheap"
    assert found[0].gain == pytest.approx(2.0)
    assert "would win" not in found[0].advice


@pytest.mark.parametrize(
    ("env", "title"),
    [
        ("CartPole-v1", "The environment has a compiled twin, envfleet/CartPole-v1"),
        ("envfleet/CartPole-v1", "The environment is a kernel"),
    ],
)
def test_a_kernel_is_named(env, title):
    plain = facts(fleet={"kernel": 90_000.0})
    found = diagnose(
        dataclasses.replace(plain, run=dataclasses.replace(plain.run, env=env), kernel="envfleet/CartPole-v1")
    ).findings[0]
    assert (found.code, found.title) == ("kernel", title)
    assert found.gain == pytest.approx(10.0)
    assert found.advice.startswith('envfleet.make("envfleet/CartPole-v1", num_envs=8, backend="kernel")')
    assert ("how equal" in found.advice) is (env == "CartPole-v1")


def test_a_kernel_that_cannot_be_compiled_here_is_named():
    found = diagnose(dataclasses.replace(facts(), kernel="envfleet/CartPole-v1")).findings
    finding = next(finding for finding in found if finding.code == "kernel")
    assert "with the extra envfleet[kernels]" in finding.advice


def test_processes_pay():
    found = findings(fleet={"process": 17_000.0})
    assert found[0].code == "processes_pay"
    assert 'backend="process", workers=2' in found[0].advice


def test_no_problem_but_even():
    assert codes(findings()) == ["processes_even"]


def test_stragglers():
    times = (100e-6,) * 9 + (10e-3,)
    unlucky = facts(step_s=sum(times) / 10, step_times=times)
    assert straggler_loss(unlucky) > 1.3
    assert "stragglers" in codes(diagnose(unlucky).findings)
    assert straggler_loss(facts()) == pytest.approx(1.0)


def test_a_failed_fleet_comes_first():
    found = findings(fleet={"process": None}, reset_s=1.0)
    assert found[0].code == "fleet_failed"
    assert "envfleet process: boom" in found[0].title


def test_one_core():
    one = dataclasses.replace(facts().machine, usable_cores=1.0)
    found = diagnose(dataclasses.replace(facts(), machine=one)).findings
    assert found[0].code == "one_core"
    assert "Only 1 of 4 cores can be used" in found[0].title


def test_busy_machine():
    found = diagnose(dataclasses.replace(facts(), busy_cores=3.0)).findings
    assert "Other processes use 3.0 of 4 cores" in [finding.title for finding in found]


def test_policy():
    # One step of the fleet takes 8 / 9000 s; with a policy as long, working at once doubles the speed.
    found = findings(policy_s=8 / 9_000)
    assert found[0].code == "policy"
    assert found[0].gain == pytest.approx(2.0)
    assert "recv(env_indices=…)" in found[0].advice


def test_a_policy_that_takes_no_time_changes_nothing():
    assert findings(policy_s=0.0, fleet={"process": 18_000.0}) == findings(fleet={"process": 18_000.0})


def test_gains_shrink_with_a_slow_policy():
    alone = findings(fleet={"process": 18_000.0})[0]
    found = findings(policy_s=1.0, fleet={"process": 18_000.0})
    with_policy = next(finding for finding in found if finding.code == "processes_pay")
    assert alone.gain == pytest.approx(2.0)
    assert with_policy.gain < 1.01


@pytest.mark.parametrize(
    ("code", "fleet", "changes", "gain"),
    [
        # 8 sub-environments, a policy of 50 ms: from 50 + 100 ms to 50 + 50 ms.
        ("processes_pay", {"serial": 80.0, "process": 160.0}, {}, 150 / 100),
        ("too_cheap", {"serial": 160.0, "process": 80.0}, {}, 150 / 100),
        # Eight copies of 3.125 ms are half of the fastest fleet's 50 ms.
        (
            "big_observation",
            {"serial": 80.0, "process": 160.0},
            {"observation_bytes": 1_000_000, "copy_s": 3.125e-3},
            100 / 75,
        ),
        # Resets are half of the fastest fleet's 50 ms.
        (
            "slow_reset",
            {"serial": 80.0, "process": 160.0},
            {"step_s": 1e-3, "reset_s": 10e-3, "episode_steps": 10.0},
            100 / 75,
        ),
    ],
)
def test_a_gain_with_a_policy_is_of_the_fleet_that_gets_faster(code, fleet, changes, gain):
    found = findings(policy_s=0.05, fleet=fleet, **changes)
    assert next(finding for finding in found if finding.code == code).gain == pytest.approx(gain)


def test_reset_share_without_an_episode_is_none():
    assert facts(episode_steps=None).env.reset_share == 0.0


def test_wrappers_are_listed_outermost_first():
    measured = probe_env({}, resolve("CartPole-v1"), 0.02)
    assert list(measured.wrappers) == ["TimeLimit", "OrderEnforcing", "PassiveEnvChecker"]


def test_each_layer_gets_actions_of_its_own_space():
    measured = probe_env({}, resolve("tests.unit.bench.fakes:of_other_actions"), 0.02)
    assert list(measured.wrappers)[:2] == ["TransformAction", "TimeLimit"]


def test_a_passive_checker_that_costs_is_named():
    found = findings(wrappers={"PassiveEnvChecker": 60e-6})
    assert "disable_env_checker=True" in found[0].advice


def test_an_env_that_cannot_be_built():
    with pytest.raises(ChildFailed, match="planted in the constructor"):
        examine(resolve("tests.unit.bench.fakes:broken"), 2, progress=lambda text, fraction: None)


def test_a_whole_examination():
    fractions = []
    found_facts = examine(
        resolve("infos"), 2, 1, policy_s=0.001, seconds=0.05, progress=lambda text, fraction: fractions.append(fraction)
    )
    assert fractions == sorted(fractions)
    found = diagnose(found_facts)
    assert "fleet_failed" not in codes(found.findings)
    data = json.loads(figures_json("doctor", found))
    assert (data["kind"], data["schema_version"]) == ("envfleet.doctor", 1)
    assert data["facts"]["env"]["num_infos"] == 3
    file = io.StringIO()
    show_diagnosis(found, Console(file=file, width=100))
    text = file.getvalue()
    for words in ("One envfleet-bench/Info-v0", "envfleet serial", "Limit of 1 core", "The policy takes", "1. "):
        assert words in text


def test_a_twin_is_measured_beside_the_environment():
    found = examine(resolve("CartPole-v1"), 2, 1, seconds=0.05, progress=lambda text, fraction: None)
    assert found.kernel == "envfleet/CartPole-v1"
    assert found.step_s("kernel") is not None
    assert found.step_s("serial") is not None
    assert not any(entry.problem for entry in found.run.entries)
