"""Tables and sentences for what `envfleet tune` found: the best fleet, the runner-up and why."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from envfleet.bench.report import make_table
from envfleet.bench.tune import Tuning

_SHOWN = 10


def show_tuning(tuning: Tuning, console: Console) -> None:
    """Print the ranking, the line to paste and the reasons."""
    console.print(_table(tuning))
    hidden = len(tuning.trials) - _SHOWN
    tried = f"{len(tuning.trials)} fleets tried in {tuning.seconds:.0f} s"
    untried = f", {tuning.num_untried} left untried for want of time (more: --seconds)" if tuning.num_untried else ""
    shown = f", the best {_SHOWN} shown" if hidden > 0 else ""
    console.print(f"[dim]{tried}{shown}{untried}.[/dim]", soft_wrap=True)
    for candidate, reason in tuning.failures[:3]:
        console.print(f"[yellow]Failed: {escape(candidate.describe())}: {escape(reason)}[/yellow]", soft_wrap=True)
    if len(tuning.failures) > 3:
        console.print(f"[yellow]… and {len(tuning.failures) - 3} more failed.[/yellow]")
    console.print()
    console.print(f"[bold green]Best:[/bold green] {escape(tuning.best.candidate.describe())}")
    for line in tuning.best_lines:
        console.print(f"    {escape(line)}", soft_wrap=True)
    if tuning.runner_up is not None:
        console.print(f"[bold]Runner-up:[/bold] {escape(tuning.runner_up.candidate.describe())}")
    console.print()
    for reason in explain(tuning):
        console.print(f"· {escape(reason)}", soft_wrap=True)


def explain(tuning: Tuning) -> list[str]:
    """Return in plain words why the best fleet is the best."""
    best = tuning.best
    reasons = [reason for why in (_why_first, _why_place) if (reason := why(tuning))]
    if best.candidate.is_batched:
        reasons.append(
            "It needs asynchronous code: fleet.send(actions, env_indices) and batch = fleet.recv(), "
            f"{best.candidate.batch_size} rows at a time."
        )
    return reasons


def _table(tuning: Tuning) -> Table:
    names = ("backend", "envs", "workers", "at a time", "steps/s", "spread")
    table = make_table(f"Fleets of {tuning.env}", *names)
    table.add_column("")
    fastest = max(trial.rate for trial in tuning.trials)
    for place, trial in enumerate(tuning.trials[:_SHOWN]):
        one = trial.candidate
        workers = "–" if one.backend == "serial" else str(one.workers)
        at_a_time = str(one.batch_size) if one.is_batched else "all"
        rates = f"{trial.rate:,.0f}", "–".join(f"{rate:,.0f}" for rate in trial.spread)
        bar = "█" * max(1, round(8 * trial.rate / fastest))
        style = "bold green" if place == 0 else ""
        table.add_row(one.backend, str(one.num_envs), workers, at_a_time, *rates, bar, style=style)
    return table


def _why_first(tuning: Tuning) -> str:
    best, second = tuning.best, tuning.runner_up
    if second is None:
        return "It is the only one that could be measured."
    gain = best.rate / second.rate - 1
    if best.is_clearly_faster(second):
        return f"It makes {best.rate:,.0f} steps/s, {gain:.0%} more than the runner-up."
    simpler = "; this one is simpler" if best.burden < second.burden else ""
    return f"The runner-up is within the spread of the measurements ({-gain:+.0%} in the median){simpler}."


def _why_place(tuning: Tuning) -> str | None:
    """Compare with the best of the other places: this process against workers."""
    best = tuning.best
    is_serial = best.candidate.backend == "serial"
    other = next((one for one in tuning.trials if (one.candidate.backend == "serial") != is_serial), None)
    if other is None:
        return None
    if not is_serial:
        gain = f"{best.rate / other.rate:.2f}× the best single process"
        return f"Its workers step at the same time: {gain}, in which a step takes {1e6 / other.rate:.0f} µs."
    ratio = f"the best fleet with workers makes {other.rate / best.rate:.2f}×"
    if best.is_clearly_faster(other):
        return f"A step takes {1e6 / best.rate:.0f} µs in this process, too little for workers to pay: {ratio}."
    return f"Workers gain nothing beyond the spread of the measurements: {ratio}."
