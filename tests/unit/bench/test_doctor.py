"""Environments with a planted problem, and what the doctor says of them."""

import dataclasses
import io
import json

import pytest
from rich.console import Console
from tests.unit.bench.samples import facts

from envfleet.bench.child import ChildFailed
from envfleet.bench.doctor import WrapperCost, examination_json, examine, probe_env
from envfleet.bench.doctor_report import show_examination
from envfleet.bench.findings import diagnose, reset_share, straggler_loss
from envfleet.bench.workloads import resolve, synthetic


def codes(found):
    return [finding.code for finding in found]


def diagnose_env(name, **changes):
    """Measure a planted environment in this process, put it into otherwise ordinary facts."""
    env_facts = probe_env({}, resolve(f"tests.unit.bench.fakes:{name}"), 0.05)
    return diagnose(dataclasses.replace(facts(**changes), env_facts=env_facts))


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
    assert "48 threads" in finding.evidence


def test_dear_wrapper():
    found = diagnose_env("dearly_wrapped")
    finding = next(finding for finding in found if finding.code == "dear_wrapper")
    assert "DearWrapper" in finding.title


def test_observations_without_a_shape():
    assert "object_observation" in codes(diagnose_env("ragged"))


def test_many_infos():
    measured = probe_env({}, synthetic("InfoEnv", num_keys=40), 0.05)
    assert measured.num_infos == 40
    found = diagnose(facts(num_infos=40.0, fleet={"serial_without_infos": 27_000.0}))
    assert found[0].code == "many_infos"
    assert found[0].gain == pytest.approx(3.0)
    assert not diagnose_infos_that_cost_nothing()


def diagnose_infos_that_cost_nothing():
    return [
        code
        for code in codes(diagnose(facts(num_infos=3.0, fleet={"serial_without_infos": 9_100.0})))
        if "info" in code
    ]


def test_too_cheap_for_processes():
    found = diagnose(facts(step_s=5e-6, reset_s=1e-6, fleet={"serial": 120_000.0, "process": 60_000.0}))
    assert found[0].code == "too_cheap"
    assert found[0].gain == pytest.approx(2.0)
    assert "would win" not in found[0].advice


@pytest.mark.parametrize(
    ("env", "title"),
    [
        ("CartPole-v1", "It has a compiled twin, envfleet/CartPole-v1"),
        ("envfleet/CartPole-v1", "It is a kernel, which can be compiled"),
    ],
)
def test_a_kernel_is_named(env, title):
    measured = dataclasses.replace(facts(fleet={"kernel": 90_000.0}), env=env, kernel="envfleet/CartPole-v1")
    found = diagnose(measured)[0]
    assert (found.code, found.title) == ("kernel", title)
    assert found.gain == pytest.approx(10.0)
    assert found.advice.startswith('envfleet.make("envfleet/CartPole-v1", num_envs=8, backend="kernel")')
    assert ("how equal" in found.evidence) is (env == "CartPole-v1")
    without_numba = dataclasses.replace(facts(), env=env, kernel="envfleet/CartPole-v1")
    finding = next(finding for finding in diagnose(without_numba) if finding.code == "kernel")
    assert "needs the extra envfleet[kernels]" in finding.evidence


def test_processes_pay():
    found = diagnose(facts(fleet={"process": 17_000.0}))
    assert found[0].code == "processes_pay"
    assert 'backend="process", workers=2' in found[0].advice


def test_no_problem_but_even():
    assert codes(diagnose(facts())) == ["processes_even"]


def test_stragglers():
    times = (100e-6,) * 9 + (10e-3,)
    unlucky = facts(step_s=sum(times) / 10, step_times=times)
    assert straggler_loss(unlucky) > 1.3
    assert "stragglers" in codes(diagnose(unlucky))
    assert straggler_loss(facts()) == pytest.approx(1.0)


def test_memory_and_a_failed_fleet_come_first():
    found = diagnose(facts(memory_bytes=400_000_000, fleet={"process": None, "problems": ("envfleet process: boom",)}))
    assert set(codes(found)[:2]) == {"memory", "fleet_failed"}
    assert "boom" in next(finding for finding in found if finding.code == "fleet_failed").evidence


def test_one_core():
    one = dataclasses.replace(facts().machine, usable_cores=1.0)
    found = diagnose(dataclasses.replace(facts(), machine=one))
    assert found[0].code == "one_core"
    assert "Of 4 cores, the scheduler and the control group grant 1." in found[0].evidence


def test_busy_machine():
    found = diagnose(dataclasses.replace(facts(fleet={"process": 17_000.0}), busy_cores=3.0))
    busy = next(finding for finding in found if finding.code == "busy_machine")
    assert busy.gain == pytest.approx(2.0)


def test_policy():
    # One step of the fleet takes 8 / 9000 s; with a policy as long, working at once doubles the speed.
    found = diagnose(facts(policy_s=8 / 9_000))
    assert found[0].code == "policy"
    assert found[0].gain == pytest.approx(2.0)
    assert "recv(env_indices=…)" in found[0].advice


def test_a_policy_that_takes_no_time_changes_nothing():
    assert diagnose(facts(policy_s=0.0, fleet={"process": 18_000.0})) == diagnose(facts(fleet={"process": 18_000.0}))


def test_gains_shrink_with_a_slow_policy():
    alone = diagnose(facts(fleet={"process": 18_000.0}))[0]
    found = diagnose(facts(policy_s=1.0, fleet={"process": 18_000.0}))
    with_policy = next(finding for finding in found if finding.code == "processes_pay")
    assert alone.gain == pytest.approx(2.0)
    assert with_policy.gain < 1.01


@pytest.mark.parametrize(
    ("code", "fleet", "changes", "gain"),
    [
        # 8 sub-environments, a policy of 50 ms: from 50 + 100 ms to 50 + 50 ms.
        ("processes_pay", {"serial": 80.0, "process": 160.0}, {}, 150 / 100),
        ("too_cheap", {"serial": 160.0, "process": 80.0}, {}, 150 / 100),
        # Serial fleets from 100 to 25 ms, beside processes that step in 50 ms.
        ("many_infos", {"serial": 80.0, "process": 160.0, "serial_without_infos": 320.0}, {}, 150 / 75),
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
    found = diagnose(facts(policy_s=0.05, fleet=fleet, **changes))
    assert next(finding for finding in found if finding.code == code).gain == pytest.approx(gain)


def test_reset_share_without_an_episode_is_none():
    assert reset_share(facts(is_episode_seen=False)) == 0.0


def test_wrappers_are_listed_outermost_first():
    measured = probe_env({}, resolve("CartPole-v1"), 0.02)
    assert [wrapper.name for wrapper in measured.wrappers] == ["TimeLimit", "OrderEnforcing", "PassiveEnvChecker"]


def test_each_layer_gets_actions_of_its_own_space():
    measured = probe_env({}, resolve("tests.unit.bench.fakes:of_other_actions"), 0.02)
    assert [wrapper.name for wrapper in measured.wrappers][:2] == ["TransformAction", "TimeLimit"]


def test_a_passive_checker_that_costs_is_named():
    found = diagnose(facts(wrappers=(WrapperCost("PassiveEnvChecker", 60e-6),)))
    assert "disable_env_checker=True" in found[0].advice


def test_an_env_that_cannot_be_built():
    with pytest.raises(ChildFailed, match="planted in the constructor"):
        examine(resolve("tests.unit.bench.fakes:broken"), 2, progress=lambda text, fraction: None)


def test_a_whole_examination(capsys):
    fractions = []
    found_facts = examine(
        synthetic("InfoEnv"),
        2,
        1,
        policy_s=0.001,
        seconds=0.05,
        progress=lambda text, fraction: fractions.append(fraction),
    )
    assert fractions == sorted(fractions)
    found = diagnose(found_facts)
    assert not found_facts.fleet_facts.problems
    data = json.loads(examination_json(found_facts, found))
    assert (data["kind"], data["schema_version"]) == ("envfleet.doctor", 1)
    assert data["facts"]["env_facts"]["num_infos"] == 3
    file = io.StringIO()
    console = Console(file=file, width=100)
    show_examination(found_facts, found, console)
    text = file.getvalue()
    for words in ("One envfleet-bench/Info-v0", "envfleet serial", "with your policy", "1. "):
        assert words in text


def test_a_twin_is_measured_beside_the_environment():
    found = examine(resolve("CartPole-v1"), 2, 1, seconds=0.05, progress=lambda text, fraction: None)
    assert found.kernel == "envfleet/CartPole-v1"
    assert found.fleet_facts.kernel is not None
    assert found.fleet_facts.kernel > 2 * found.fleet_facts.serial
    assert not found.fleet_facts.problems
