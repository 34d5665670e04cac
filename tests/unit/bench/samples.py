"""Reports and facts with chosen figures."""

from __future__ import annotations

import dataclasses
from typing import Any

from envfleet.bench.doctor import EnvFacts, Facts
from envfleet.bench.results import ContenderResult, Machine, Report, Run

MACHINE = Machine("a processor", 4, 2.0, 0.5, "3.11.7", {"envfleet": "0.1.0"})


def entry(name: str, *rates: float, label: str = "") -> ContenderResult:
    line = f'envfleet.make(…, backend="{name.removeprefix("envfleet-")}")'
    label = label or name.replace("-", " ")
    return ContenderResult(rates, name, label, start_s=0.5, memory_bytes=8_000_000, line=line)


def run(*entries: ContenderResult, workload: str = "CartPole-v1", num_envs: int = 8, workers: int | None = 2) -> Run:
    return Run(workload, workload, num_envs, workers, entries)


def report(*runs: Run) -> Report:
    return Report("2026-01-01T00:00:00+00:00", MACHINE, 0.5, runs)


ENV_FACTS = EnvFacts(
    step_s=100e-6,
    step_times=(100e-6,) * 50,
    reset_s=100e-6,
    episode_steps=200.0,
    observation_bytes=16,
    copy_s=0.2e-6,
    num_infos=0.0,
    wrappers={"TimeLimit": 0.1e-6},
    threads=0,
    cores_busy=1.0,
)


def facts(policy_s: float = 0.0, fleet: dict[str, float | None] | None = None, **env_changes: Any) -> Facts:
    """A quiet machine, a step of 100 µs, worker processes as fast as one process; with the given changes.

    Fleets are given by backend, in steps/s; one without a figure failed.
    """
    rates = {"serial": 9_000.0, "process": 9_000.0, **(fleet or {})}
    entries = [entry("loop", 9_500.0)]
    for backend, rate in rates.items():
        measured = entry(f"envfleet-{backend}", *([] if rate is None else [rate]))
        entries.append(measured if rate else dataclasses.replace(measured, problem="boom"))
    return Facts(
        env=dataclasses.replace(ENV_FACTS, **env_changes),
        run=run(*entries, workload="Some-v0"),
        workers=2,
        kernel=None,
        policy_s=policy_s,
        machine=MACHINE,
        busy_cores=0.0,
    )
