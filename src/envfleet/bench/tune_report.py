"""What `envfleet tune` found, as a person reads it: the best fleet, the runner-up and why."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from envfleet.bench.tune import Trial, Tuning

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
    """Say in plain words why the best fleet is the best."""
    best = tuning.best
    reasons = [reason for why in (_why_first, _why_place, _why_envs_per_worker, _why_batch) if (reason := why(tuning))]
    if best.candidate.is_batched:
        reasons.append(
            "It needs asynchronous code: fleet.send(actions, env_indices) and batch = fleet.recv(), "
            f"{best.candidate.batch_size} rows at a time."
        )
    return reasons


def _table(tuning: Tuning) -> Table:
    title = f"Fleets of {tuning.env}"
    table = Table(title=title, title_style="bold", title_justify="left", header_style="dim", box=None, pad_edge=False)
    table.add_column("backend")
    for name in ("envs", "workers", "per worker", "at a time", "steps/s", "spread"):
        table.add_column(name, justify="right")
    table.add_column("")
    fastest = max(trial.rate for trial in tuning.trials)
    for place, trial in enumerate(tuning.trials[:_SHOWN]):
        candidate = trial.candidate
        cells = [
            candidate.backend,
            str(candidate.num_envs),
            "–" if candidate.backend == "serial" else str(candidate.workers),
            "–" if candidate.backend == "serial" else str(candidate.envs_per_worker),
            str(candidate.batch_size) if candidate.is_batched else "all",
            f"{trial.rate:,.0f}",
            "–".join(f"{rate:,.0f}" for rate in trial.spread),
            "█" * max(1, round(16 * trial.rate / fastest)),
        ]
        table.add_row(*cells, style="bold green" if place == 0 else "")
    return table


def _why_first(tuning: Tuning) -> str | None:
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
    other = _first_where(tuning, lambda trial: (trial.candidate.backend == "serial") != is_serial)
    if other is None:
        return None
    if not is_serial:
        gain = f"{best.rate / other.rate:.2f}× the best single process"
        return f"Its workers step at the same time: {gain}, in which a step takes {1e6 / other.rate:.0f} µs."
    ratio = f"the best fleet with workers makes {other.rate / best.rate:.2f}×"
    if best.is_clearly_faster(other):
        return f"A step takes {1e6 / best.rate:.0f} µs in this process, too little for workers to pay: {ratio}."
    return f"Workers gain nothing beyond the spread of the measurements: {ratio}."


def _why_envs_per_worker(tuning: Tuning) -> str | None:
    """Compare with fewer and with more sub-environments on the same workers."""
    best = tuning.best.candidate
    if best.backend == "serial":
        return None
    same = [
        trial
        for trial in tuning.trials
        if (trial.candidate.backend, trial.candidate.workers) == (best.backend, best.workers)
        and not trial.candidate.is_batched
        and trial.candidate.envs_per_worker < best.envs_per_worker
    ]
    worst = min(same, key=lambda trial: trial.candidate.envs_per_worker, default=None)
    if worst is None or not tuning.best.is_clearly_faster(worst):
        return None
    return (
        f"{best.envs_per_worker} sub-environments a worker share one wake-up; with {worst.candidate.envs_per_worker} "
        f"it is {worst.rate / tuning.best.rate:.2f}×."
    )


def _why_batch(tuning: Tuning) -> str | None:
    """Compare waiting for all with acting on whoever is ready."""
    best = tuning.best
    if best.candidate.workers < 2:
        return None
    shape = (best.candidate.backend, best.candidate.num_envs, best.candidate.workers)
    twin = _first_where(
        tuning,
        lambda trial: (
            (trial.candidate.backend, trial.candidate.num_envs, trial.candidate.workers) == shape
            and trial.candidate.is_batched != best.candidate.is_batched
        ),
    )
    if twin is None:
        return None
    ratio = twin.rate / best.rate
    if best.candidate.is_batched:
        return f"Acting on whoever is ready keeps workers busy while others finish; waiting for all is {ratio:.2f}×."
    return f"Acting on whoever is ready brings nothing here ({ratio:.2f}×): the workers take equally long."


def _first_where(tuning: Tuning, condition: Callable[[Trial], bool]) -> Trial | None:
    """Return the trial of the given kind that came furthest, or `None`."""
    return next((trial for trial in tuning.trials if condition(trial)), None)
