"""Reports and facts with chosen figures."""

from __future__ import annotations

import dataclasses
from typing import Any

from envfleet.bench.doctor import EnvFacts, Facts, FleetFacts, WrapperCost
from envfleet.bench.measure import Sample
from envfleet.bench.results import Entry, Machine, Report, Run, Settings

MACHINE = Machine("a processor", 4, 2.0, 8_000_000_000, 0.5, "Linux 6", "3.11.7", {"envfleet": "0.1.0"})


def entry(name: str, *rates: float, label: str = "") -> Entry:
    samples = tuple(Sample(int(rate), 100, 1.0, 10.0, 20.0, 1.0) for rate in rates)
    return Entry(name, label or name.replace("-", " "), "ok", "", 0.5, 0.01, 8_000_000, 0.0, samples)


def run(*entries: Entry, workload: str = "CartPole-v1", num_envs: int = 8, workers: int | None = 2) -> Run:
    return Run(workload, workload, num_envs, workers, entries)


def report(*runs: Run) -> Report:
    return Report("2026-01-01T00:00:00+00:00", MACHINE, Settings(), runs)


ENV_FACTS = EnvFacts(
    step_s=100e-6,
    step_times=(100e-6,) * 50,
    reset_s=100e-6,
    episode_steps=200.0,
    is_episode_seen=True,
    observation_bytes=16,
    observation_dtypes=("float32",),
    copy_s=0.2e-6,
    has_fixed_shape=True,
    num_infos=0.0,
    wrappers=(WrapperCost("TimeLimit", 0.1e-6),),
    threads=0,
    cores_busy=1.0,
    memory_bytes=100_000,
)


def facts(policy_s: float | None = None, fleet: dict[str, Any] | None = None, **env_changes: Any) -> Facts:
    """A quiet machine, a step of 100 µs, worker processes that neither help nor hurt; changed as asked."""
    figures = {
        "loop": 9_500.0,
        "serial": 9_000.0,
        "serial_without_infos": None,
        "process": 9_000.0,
        "kernel": None,
        "signal_s": 50e-6,
    }
    return Facts(
        env="Some-v0",
        kernel=None,
        num_envs=8,
        workers=2,
        policy_s=policy_s,
        machine=MACHINE,
        busy_cores=0.0,
        free_memory_bytes=4_000_000_000,
        env_facts=dataclasses.replace(ENV_FACTS, **env_changes),
        fleet_facts=FleetFacts(**{**figures, **(fleet or {})}),
    )
