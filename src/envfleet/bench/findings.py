"""Recommendations of `envfleet doctor`, derived from its measurements.

The gain of a finding is an estimate by a simple model: a step of a fleet takes the time of the slowest worker,
including resets, plus signalling and copies; the policy runs between two steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from envfleet.bench.doctor import Facts
from envfleet.bench.report import HOW_EQUAL, count, duration, machine_line, make_table, run_table, size

_URGENT = frozenset({"fleet_failed", "one_core"})
_BIG_OBSERVATION_BYTES = 4_096  # smaller observations cost less to move than the call that moves them
_MANY_INFOS = 10
_SMALLEST_GAIN = 1.1  # smaller gains are within the noise of measurements


@dataclasses.dataclass(frozen=True)
class Finding:
    """Recommendation with its reason.

    Attributes:
        code: Stable name, such as `"slow_reset"`.
        title: One line with figures.
        advice: Recommended change.
        gain: Estimated speed-up of fleet and policy together; 1 for facts without a change.
    """

    code: str
    title: str
    advice: str
    gain: float = 1.0


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """Measurements and findings.

    Its JSON is `{"kind": "envfleet.doctor", "schema_version": 1, "facts": …, "findings": […]}`.

    Attributes:
        facts: Measurements.
        findings: Failures first, then the largest gain first.
    """

    facts: Facts
    findings: tuple[Finding, ...]


def diagnose(facts: Facts) -> Diagnosis:
    """Return the findings of all measurements."""
    findings = [*_of_machine(facts), *_of_fleets(facts), *_of_env(facts)]
    return Diagnosis(facts, tuple(sorted(findings, key=lambda one: (one.code not in _URGENT, -one.gain))))


def _of_machine(facts: Facts) -> Iterator[Finding]:
    machine, env, num_envs = facts.machine, facts.env, facts.run.num_envs
    if machine.usable_cores < 1.5:
        yield Finding(
            "one_core",
            f"Only {machine.usable_cores:g} of {machine.cores} cores can be used",
            "Worker processes would share it. Give the container or job more cores (docker --cpus, Slurm "
            '--cpus-per-task), or stay with backend="serial".',
        )
    elif facts.busy_cores >= 0.5:
        yield Finding(
            "busy_machine",
            f"Other processes use {facts.busy_cores:.1f} of {machine.cores} cores",
            "Stop them, or use fewer workers; all figures are lower than on an idle machine.",
        )
    if facts.ray_niceness > 0:
        yield Finding(
            "ray_niceness",
            f"Workers of the Ray cluster on this machine have niceness {facts.ray_niceness}",
            "Every other program goes before them, so that steps take tens of times as long on a busy machine. Start "
            "the cluster with RAY_worker_niceness=0 in the environment of `ray start`; a cluster that envfleet starts "
            "has it already.",
        )
    if env.threads >= 2 or env.cores_busy >= 1.3:
        yield Finding(
            "threads",
            f"One environment starts {count(env.threads, 'thread')} and uses {env.cores_busy:.1f} cores",
            f"{num_envs} of them compete for {machine.usable_cores:g} cores. Limit each to one thread: "
            "OMP_NUM_THREADS=1, MKL_NUM_THREADS=1, torch.set_num_threads(1), or the setting of its library.",
            max(1.0, env.cores_busy),
        )


def _of_fleets(facts: Facts) -> Iterator[Finding]:
    run, workers, fastest_s = facts.run, facts.workers, facts.fastest_s
    problems = [f"{entry.label}: {entry.problem}" for entry in run.entries if entry.problem]
    if problems:
        advice = "Fix this first: make the fleet in a script to see the error; ENVFLEET_DEBUG=1 shows tracebacks."
        yield Finding("fleet_failed", f"A fleet of this environment failed: {'; '.join(problems)}", advice)
    if (finding := _of_processes(facts)) is not None:
        yield finding
    if facts.kernel is not None:
        step_s, is_twin = facts.step_s("kernel") or fastest_s, facts.kernel != run.env
        yield Finding(
            "kernel",
            f"The environment has a compiled twin, {facts.kernel}" if is_twin else "The environment is a kernel",
            f'envfleet.make("{facts.kernel}", num_envs={run.num_envs}, backend="kernel"), with the extra '
            f"envfleet[kernels], steps thousands of them in one call. {f'{HOW_EQUAL}.' if is_twin else ''}",
            max(1.0, facts.gain(fastest_s, step_s)),
        )
    if facts.policy_s:
        both_s = facts.policy_s + fastest_s
        yield Finding(
            "policy",
            f"The policy takes {facts.policy_s / both_s:.0%} of the time: {duration(facts.policy_s)} per batch, the "
            f"fastest fleet {duration(fastest_s)} per step",
            "Overlap them: send(actions, env_indices=half) steps one half while the policy computes actions for the "
            "other half, received by recv(env_indices=…). With more sub-environments, each call of the policy "
            "yields more actions; large batches are cheap for a network.",
            both_s / max(facts.policy_s, fastest_s),
        )
    # If steps are cheap or other processes use the cores, the spread comes from the machine, not the environment.
    loss, is_quiet = straggler_loss(facts), facts.env.step_s * run.num_envs > 1e-3 and facts.busy_cores < 0.5
    if loss >= 1.3 and is_quiet:
        yield Finding(
            "stragglers",
            f"Waiting for the slowest of {workers} workers costs {1 - 1 / loss:.0%}",
            f"Receive the sub-environments that are ready: batch_size={max(1, run.num_envs // 2)} with send and recv. "
            "More sub-environments per worker also even out the differences.",
            facts.gain(fastest_s, fastest_s / loss),
        )


def _of_processes(facts: Facts) -> Finding | None:
    """Compare worker processes with one process."""
    serial_s, process_s = facts.step_s("serial"), facts.step_s("process")
    if serial_s is None or process_s is None:
        return None
    speedup = serial_s / process_s
    if speedup >= _SMALLEST_GAIN:
        title = f"Worker processes make {speedup:.1f}× the steps of one process"
        advice = f'backend="process", workers={facts.workers} (backend="auto" chooses it by measurement).'
        return Finding("processes_pay", title, advice, facts.gain(serial_s, process_s))
    if speedup <= 1 / _SMALLEST_GAIN:
        title = "The environment steps too fast for worker processes to help"
        advice = 'backend="serial" (backend="auto" chooses it by measurement): a loop in this process is faster.'
        return Finding("too_cheap", title, advice, facts.gain(process_s, serial_s))
    advice = 'backend="serial" is simpler. `envfleet tune` also tries other numbers of sub-environments.'
    return Finding("processes_even", "Worker processes are as fast as one process", advice)


def straggler_loss(facts: Facts, draws: int = 200) -> float:
    """Estimate the time of the slowest worker divided by the mean, by sampling from the measured steps."""
    rng = np.random.default_rng(0)
    per_worker = max(1, facts.run.num_envs // facts.workers)
    totals = rng.choice(facts.env.step_times, (draws, facts.workers, per_worker)).sum(axis=2)
    return float(totals.max(axis=1).mean() / totals.mean())


def _of_env(facts: Facts) -> Iterator[Finding]:
    env, fastest_s = facts.env, facts.fastest_s

    def gain_without(share: float) -> float:
        return facts.gain(fastest_s, fastest_s * (1 - share))

    if env.reset_share >= 0.15:
        yield Finding(
            "slow_reset",
            f"Resets take {env.reset_share:.0%} of an environment's time",
            "Load and build once in __init__ instead of in every reset. A synchronous step waits for the "
            "sub-environments that reset; with batch_size, send and recv the others continue.",
            gain_without(env.reset_share),
        )
    name, cost_s = max(env.wrappers.items(), key=lambda item: item[1], default=("", 0.0))
    if cost_s > max(0.1 * env.step_s, 1e-6):
        share = min(0.99, cost_s / env.step_s)
        advice = "Profile its step method, or replace it by a vector wrapper, which processes whole batches."
        if name == "PassiveEnvChecker":
            advice = "Pass disable_env_checker=True once the environment works."
        yield Finding("slow_wrapper", f"The wrapper {name} takes {share:.0%} of a step", advice, gain_without(share))
    moving = min(0.9, facts.run.num_envs * env.copy_s / fastest_s)
    if env.observation_bytes is None:
        yield Finding(
            "object_observation",
            "Observations lack a fixed shape, so they are pickled",
            "Give every part of the space a fixed shape (pad to the longest, add a length or a mask): observations "
            "then move through shared memory.",
        )
    elif env.observation_bytes >= _BIG_OBSERVATION_BYTES and moving >= 0.05:
        yield Finding(
            "big_observation",
            f"An observation is {size(env.observation_bytes)}: moving it takes {moving:.0%} of a step",
            "Pass copy=False if each observation is used only until the second next step. Use uint8 for pixels and "
            "float32 for other numbers. Observe less, or shrink images inside the environment.",
            gain_without(moving),
        )
    if env.num_infos >= _MANY_INFOS:
        title = f"The info of every step has {env.num_infos:.0f} values"
        advice = "Return infos only when they are needed, for example at the end of an episode."
        yield Finding("many_infos", title, advice)


def show_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print the figures, then the findings."""
    facts, findings = diagnosis.facts, diagnosis.findings
    console.print(f"[dim]{escape(machine_line(facts.machine))}[/dim]")
    for table in (_env_table(facts), run_table(facts.run)):
        console.print()
        console.print(table)
    limit = facts.workers / facts.env.step_with_resets_s
    console.print(f"[dim]Limit of {count(facts.workers, 'core')}: {limit:,.0f} steps/s.[/dim]")
    console.print()
    console.print(
        "[bold]Recommended changes, largest effect first[/bold]"
        if findings
        else "[bold]Nothing to change was found.[/bold]"
    )
    for number, finding in enumerate(findings, start=1):
        gain = f" [green](about {finding.gain:.1f}×)[/green]" if finding.gain >= 1.05 else ""
        console.print(f"[bold]{number}. {escape(finding.title)}[/bold]{gain}")
        console.print(Padding(f"[cyan]→[/cyan] {escape(finding.advice)}", (0, 0, 0, 3)))


def _env_table(facts: Facts) -> Table:
    env = facts.env
    p99 = sorted(env.step_times)[min(len(env.step_times) - 1, int(0.99 * len(env.step_times)))]
    wrappers = ", ".join(f"{name} {duration(cost_s)}" for name, cost_s in env.wrappers.items())
    fixed = f"{size(env.observation_bytes or 0)}, copied in {duration(env.copy_s)}"
    table = make_table(f"One {facts.run.env}", "", "")
    table.show_header, table.columns[1].justify = False, "left"
    for name, value in (
        ("step", f"{duration(env.step_s)} on average, 1 in 100 longer than {duration(p99)}"),
        ("of it in wrappers", wrappers or "none"),
        ("reset", f"{duration(env.reset_s)}; {env.reset_share:.0%} of all time"),
        ("episode", f"{env.episode_steps:.0f} steps under random actions" if env.episode_steps else "none ended"),
        ("observation", "no fixed shape" if env.observation_bytes is None else fixed),
        ("infos", f"{env.num_infos:.1f} values per step"),
        ("threads", f"{env.threads} started; {env.cores_busy:.1f} cores used while stepping"),
    ):
        table.add_row(name, value)
    return table
