"""Tables and sentences for what the doctor found."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from envfleet.bench.doctor import Facts, Finding
from envfleet.bench.findings import reset_share, step_with_resets_s, vector_step_s
from envfleet.bench.report import duration, machine_line, make_table, size


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
    episode = f"{env.episode_steps:.0f} steps under random actions" if env.is_episode_seen else "none ended meanwhile"
    kinds = ", ".join(env.observation_dtypes)
    observation = f"{size(env.observation_bytes)} of {kinds}, copied in {duration(env.copy_s)}"
    p99 = sorted(env.step_times)[min(len(env.step_times) - 1, int(0.99 * len(env.step_times)))]
    wrappers = ", ".join(f"{wrapper.name} {duration(wrapper.step_s)}" for wrapper in env.wrappers) or "none"
    table = make_table(f"One {facts.env}", "", "")
    table.show_header, table.columns[1].justify = False, "left"
    for name, value in (
        ("step", f"{duration(env.step_s)} on average, 1 in 100 longer than {duration(p99)}"),
        ("wrappers' part of it", wrappers),
        ("reset", f"{duration(env.reset_s)}; {reset_share(facts):.0%} of the time in all"),
        ("episode", episode),
        ("observation", observation if env.has_fixed_shape else "no fixed shape"),
        ("infos", f"{env.num_infos:.1f} values a step"),
        ("threads", f"{env.threads} of its own; {env.cores_busy:.1f} cores busy while stepping"),
        ("memory", f"{size(env.memory_bytes)} for one more"),
    ):
        table.add_row(name, value)
    return table


def _time_table(facts: Facts) -> Table:
    """Make the table of where the time of one step of the fleet goes, and what each backend makes of it."""
    fleet, num_envs = facts.fleet_facts, facts.num_envs
    cores = f"{facts.machine.usable_cores:g} usable cores, {facts.busy_cores:.1f} busy with other work"
    table = make_table(f"{num_envs} of them ({cores})", "", "steps/s", "one step of all")

    def add(name: str, rate: float | None, style: str = "") -> None:
        if rate:
            table.add_row(name, f"{rate:,.0f}", duration(num_envs / rate), style=style)

    add("bare Python loop", fleet.loop)
    add("envfleet serial", fleet.serial)
    add(f"envfleet process, {facts.workers} workers", fleet.process)
    if fleet.signal_s is not None:
        table.add_row("  of which handing out, copying and back", "", duration(fleet.signal_s), style="dim")
    add(f"limit of {facts.workers} cores", facts.workers / step_with_resets_s(facts), style="dim")
    add(f"envfleet kernel, {facts.kernel}", fleet.kernel)
    if facts.policy_s is not None:
        add("fastest fleet with your policy", num_envs / (vector_step_s(facts) + facts.policy_s))
    return table
