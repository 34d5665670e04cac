"""What the doctor found, as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from envfleet.bench.doctor import Facts, Finding
from envfleet.bench.findings import reset_share, step_with_resets_s, vector_step_s
from envfleet.bench.report import duration, machine_line, size


def show_examination(facts: Facts, findings: Sequence[Finding], console: Console) -> None:
    """Print the figures, then the findings with the largest gain first."""
    console.print(f"[dim]{escape(machine_line(facts.machine))}[/dim]")
    console.print()
    console.print(_env_table(facts))
    console.print()
    console.print(_time_table(facts))
    console.print()
    if not findings:
        console.print("[bold green]Nothing stands in the way: no finding.[/bold green]")
        return
    console.print("[bold]What to change, the largest effect first[/bold]")
    for number, finding in enumerate(findings, start=1):
        gain = f" [green](about {finding.gain:.1f}×)[/green]" if finding.gain >= 1.05 else ""
        console.print(f"[bold]{number}. {escape(finding.title)}[/bold]{gain}")
        console.print(Padding(escape(finding.evidence), (0, 0, 0, 3)))
        console.print(Padding(f"[cyan]→[/cyan] {escape(finding.advice)}", (0, 0, 0, 3)))


def _env_table(facts: Facts) -> Table:
    env = facts.env_facts
    table = _table(f"One {facts.env}", "", "")
    episode = f"{env.episode_steps:.0f} steps under random actions" if env.is_episode_seen else "none ended meanwhile"
    observation = (
        f"{size(env.observation_bytes)} of {', '.join(env.observation_dtypes)}, copied in {duration(env.copy_s)}"
        if env.has_fixed_shape
        else "no fixed shape"
    )
    times = sorted(env.step_times)
    p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
    wrappers = ", ".join(f"{wrapper.name} {duration(wrapper.step_s)}" for wrapper in env.wrappers) or "none"
    seeded = f"{duration(env.seeded_reset_s)} with a seed"
    rows = [
        ("step", f"{duration(env.step_s)} on average, 1 in 100 longer than {duration(p99)}"),
        ("wrappers' part of it", wrappers),
        ("reset", f"{duration(env.reset_s)}, {seeded}; {reset_share(facts):.0%} of the time in all"),
        ("episode", episode),
        ("observation", observation),
        ("infos", f"{env.num_infos:.1f} values a step"),
        ("threads", f"{env.threads} of its own; {env.cores_busy:.1f} cores busy while stepping"),
        ("memory", f"{size(env.memory_bytes)} for one more"),
        ("building one", duration(env.build_s)),
    ]
    for name, value in rows:
        table.add_row(name, value)
    return table


def _time_table(facts: Facts) -> Table:
    """Where the time of one step of the fleet goes, and what each backend makes of it."""
    fleet = facts.fleet_facts
    cores = f"{facts.machine.usable_cores:g} usable cores, {facts.busy_cores:.1f} busy with other work"
    table = _table(f"{facts.num_envs} of them ({cores})", "", "steps/s", "one step of all")
    for name, rate in (
        ("bare Python loop", fleet.loop),
        ("envfleet serial", fleet.serial),
        (f"envfleet process, {facts.workers} workers", fleet.process),
    ):
        if rate:
            table.add_row(name, f"{rate:,.0f}", duration(facts.num_envs / rate))
    if fleet.signal_s is not None:
        name = "  of which handing out, copying and back"
        table.add_row(name, "", duration(fleet.signal_s), style="dim")
    limit = facts.workers / step_with_resets_s(facts)
    table.add_row(f"limit of {facts.workers} cores", f"{limit:,.0f}", duration(facts.num_envs / limit), style="dim")
    if fleet.kernel:
        step_s = facts.num_envs / fleet.kernel
        table.add_row(f"envfleet kernel, {facts.kernel}", f"{fleet.kernel:,.0f}", duration(step_s))
    if facts.policy_s is not None:
        both = vector_step_s(facts) + facts.policy_s
        table.add_row("fastest fleet with your policy", f"{facts.num_envs / both:,.0f}", duration(both))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_style="bold", title_justify="left", header_style="dim", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 or not any(columns) else "right")
    table.show_header = any(columns)
    return table
