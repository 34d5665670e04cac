"""Findings of the doctor for given figures."""

import dataclasses

import pytest
from tests.unit.bench.samples import facts

from envfleet.bench.findings import diagnose, straggler_loss


def codes(results):
    return [finding.code for finding in results]


def findings(**changes):
    """Diagnose an ordinary machine and environment, changed as asked."""
    return diagnose(facts(**changes)).findings


def test_too_cheap_for_processes():
    results = findings(step_s=5e-6, reset_s=1e-6, fleet={"serial": 120_000.0, "process": 60_000.0})
    assert results[0].code == "too_cheap"
    assert results[0].gain == pytest.approx(2.0)
    assert "would win" not in results[0].advice


@pytest.mark.parametrize(
    ("env", "title"),
    [
        ("CartPole-v1", "The environment has a compiled twin, envfleet/CartPole-v1"),
        ("envfleet/CartPole-v1", "The environment is a kernel"),
    ],
)
def test_a_kernel_is_named(env, title):
    plain = facts(fleet={"kernel": 90_000.0})
    results = diagnose(
        dataclasses.replace(plain, run=dataclasses.replace(plain.run, env=env), kernel="envfleet/CartPole-v1")
    ).findings[0]
    assert (results.code, results.title) == ("kernel", title)
    assert results.gain == pytest.approx(10.0)
    assert results.advice.startswith('envfleet.make("envfleet/CartPole-v1", num_envs=8, backend="kernel")')
    assert ("how equal" in results.advice) is (env == "CartPole-v1")


def test_a_kernel_that_cannot_be_compiled_here_is_named():
    results = diagnose(dataclasses.replace(facts(), kernel="envfleet/CartPole-v1")).findings
    finding = next(finding for finding in results if finding.code == "kernel")
    assert "with the extra envfleet[kernels]" in finding.advice


def test_processes_pay():
    results = findings(fleet={"process": 17_000.0})
    assert results[0].code == "processes_pay"
    assert 'backend="process", workers=2' in results[0].advice


def test_no_problem_but_even():
    assert codes(findings()) == ["processes_even"]


def test_stragglers():
    times = (100e-6,) * 9 + (10e-3,)
    unlucky = facts(step_s=sum(times) / 10, step_times=times)
    assert straggler_loss(unlucky) > 1.3
    assert "stragglers" in codes(diagnose(unlucky).findings)
    assert straggler_loss(facts()) == pytest.approx(1.0)


def test_a_failed_fleet_comes_first():
    results = findings(fleet={"process": None}, reset_s=1.0)
    assert results[0].code == "fleet_failed"
    assert "envfleet process: boom" in results[0].title


def test_one_core():
    one = dataclasses.replace(facts().machine, usable_cores=1.0)
    results = diagnose(dataclasses.replace(facts(), machine=one)).findings
    assert results[0].code == "one_core"
    assert "Only 1 of 4 cores can be used" in results[0].title


def test_busy_machine():
    results = diagnose(dataclasses.replace(facts(), busy_cores=3.0)).findings
    assert "Other processes use 3.0 of 4 cores" in [finding.title for finding in results]


def test_ray_cluster_with_nice_workers():
    results = diagnose(dataclasses.replace(facts(), ray_niceness=15)).findings
    finding = next(one for one in results if one.code == "ray_niceness")
    assert "niceness 15" in finding.title
    assert "RAY_worker_niceness=0" in finding.advice


def test_policy():
    # One step of the fleet takes 8 / 9000 s; with a policy as long, working at once doubles the speed.
    results = findings(policy_s=8 / 9_000)
    assert results[0].code == "policy"
    assert results[0].gain == pytest.approx(2.0)
    assert "recv(env_indices=…)" in results[0].advice


def test_a_policy_that_takes_no_time_changes_nothing():
    assert findings(policy_s=0.0, fleet={"process": 18_000.0}) == findings(fleet={"process": 18_000.0})


def test_gains_shrink_with_a_slow_policy():
    alone = findings(fleet={"process": 18_000.0})[0]
    results = findings(policy_s=1.0, fleet={"process": 18_000.0})
    with_policy = next(finding for finding in results if finding.code == "processes_pay")
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
    results = findings(policy_s=0.05, fleet=fleet, **changes)
    assert next(finding for finding in results if finding.code == code).gain == pytest.approx(gain)


def test_reset_share_without_an_episode_is_none():
    assert facts(episode_steps=None).env.reset_share == 0.0


def test_a_passive_checker_that_costs_is_named():
    results = findings(wrappers={"PassiveEnvChecker": 60e-6})
    assert "disable_env_checker=True" in results[0].advice


def test_many_infos():
    assert "many_infos" in codes(findings(num_infos=40.0))
    assert "many_infos" not in codes(findings(num_infos=3.0))
