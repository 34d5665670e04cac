"""Benchmark results as a person reads them: tables and plain sentences."""

from __future__ import annotations

import statistics

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from envfleet.bench.contenders import BASELINE, is_ours
from envfleet.bench.machine import Machine
from envfleet.bench.results import Entry, Report, Run
from envfleet.kernels.registration import find_twin

HOW_EQUAL = "docs/kernels.md has a table of how equal the two are."
_WIDE = 96
_NOISY = 1.25
_CLEAR = 1.1
_QUIET_SHARE = 0.93
_KERNEL = "envfleet-kernel"
# Whom to compare with whom: the same place (this process, worker processes), and the loop as the limit of one core.
_PAIRS: tuple[tuple[str, str], ...] = (
    ("envfleet-process", "gymnasium-async"),
    ("envfleet-process", "sb3-subproc"),
    ("envfleet-serial", "gymnasium-sync"),
    ("envfleet-serial", "sb3-dummy"),
    ("envfleet-serial", "loop"),
)


def show_report(report: Report, console: Console, *, with_costs: bool = True) -> None:
    """Print a report: per run a table of speeds, one of costs, and what they mean.

    Args:
        report: What to print.
        console: Where to.
        with_costs: Also print latencies, start-up, memory and idle CPU.
    """
    is_narrow = console.width < _WIDE
    console.print(f"[dim]{escape(machine_line(report.machine))}[/dim]")
    for run in report.runs:
        console.print()
        console.print(speed_table(run, is_narrow=is_narrow))
        if with_costs and run.measured:
            console.print()
            console.print(cost_table(run, is_narrow=is_narrow))
        console.print()
        for line in notes(run):
            console.print(f"[dim]{escape(line)}[/dim]")
        for line in conclusions(run):
            console.print(f"[bold]{escape(line)}[/bold]")


def machine_line(machine: Machine) -> str:
    """Put the machine in one line."""
    cores = f"{machine.usable_cores:g} of {machine.cores} cores usable"
    load = "" if machine.load is None else f" · load {machine.load:g}"
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return f"{machine.cpu} · {cores}{load} · Python {machine.python} · {versions}"


def speed_table(run: Run, *, is_narrow: bool = False) -> Table:
    """Make the table of steps/s and ratios, fastest first.

    Args:
        run: What to show.
        is_narrow: Draw short bars, for terminals of 80 characters.
    """
    best = best_of_ours(run)
    where = f"{run.num_envs} × {run.env}" + ("" if run.workers is None else f", {count(run.workers, 'worker')}")
    table = Table(title=where, title_style="bold", title_justify="left", header_style="dim", box=None, pad_edge=False)
    table.add_column("contender", no_wrap=True)
    table.add_column("steps/s", justify="right")
    table.add_column("")
    table.add_column("× bare loop", justify="right")
    if best is not None:
        table.add_column(f"{best.label} is", justify="right")
    fastest = max((entry.rate for entry in run.measured), default=1.0)
    for entry in sorted(run.measured, key=lambda entry: -entry.rate):
        bar = "█" * max(1, round((8 if is_narrow else 16) * entry.rate / fastest))
        style = "green" if is_ours(entry.contender) else ""
        cells = [entry.label, f"{entry.rate:,.0f}", bar, _times(run.ratio(entry.contender, BASELINE), mark="")]
        if best is not None:
            cells.append("" if is_ours(entry.contender) else _times(run.ratio(best.contender, entry.contender)))
        table.add_row(*cells, style=style)
    return table


def cost_table(run: Run, *, is_narrow: bool = False) -> Table:
    """Make the table of latency, start-up, memory and idle CPU, in the order of the speed table.

    Args:
        run: What to show.
        is_narrow: Leave out two columns, for terminals of 80 characters.
    """
    table = Table(header_style="dim", box=None, pad_edge=False)
    table.add_column("cost", no_wrap=True)
    names = ["step p50", "step p99", "start", "memory/env", "idle CPU", "CPU/step", "close"]
    for name in names[:5] if is_narrow else names:
        table.add_column(name, justify="right", no_wrap=True)
    for entry in sorted(run.measured, key=lambda entry: -entry.rate):
        samples = entry.samples
        memory = None if entry.memory_bytes is None else entry.memory_bytes / run.num_envs
        cells = [
            duration(statistics.median([sample.p50_us for sample in samples]) / 1e6),
            duration(statistics.median([sample.p99_us for sample in samples]) / 1e6),
            "–" if entry.start_s is None else duration(entry.start_s),
            "–" if memory is None else size(memory),
            # The system counts CPU time in ticks of 10 ms: one tick in a second is within the error.
            "–" if entry.idle_cpu is None else ("none" if entry.idle_cpu <= 0.011 else f"{entry.idle_cpu:.0%}"),
            duration(statistics.median([sample.cpu_s / max(1, sample.transitions) for sample in samples])),
            "–" if entry.close_s is None else duration(entry.close_s),
        ]
        shown = cells[: len(table.columns) - 1]
        table.add_row(entry.label, *shown, style="green" if is_ours(entry.contender) else "")
    return table


def notes(run: Run) -> list[str]:
    """Say who is missing and how far the figures can be trusted."""
    words = {"absent": "Left out", "failed": "Failed"}
    lines = [
        f"{words[entry.status]}: {entry.label}: {entry.reason.rstrip('.')}."
        for status in words
        for entry in run.entries
        if entry.status == status
    ]
    lines += [
        f"{entry.label} did not close within its time and was killed."
        for entry in run.measured
        if entry.memory_bytes is not None and entry.close_s is None
    ]
    baseline = run.find(BASELINE)
    return lines if baseline is None else [*lines, *_noise(baseline)]


def _noise(baseline: Entry) -> list[str]:
    """Say how quiet the machine was, going by the bare loop, which needs nothing but one core."""
    lines = []
    low, high = baseline.spread
    if high > _NOISY * low:
        lines.append(
            f"The machine is noisy: the bare loop gave {low:,.0f} to {high:,.0f} steps/s in different rounds. "
            "Ratios are taken within a round and hold better than the steps/s."
        )
    if (share := _share(baseline)) < _QUIET_SHARE:
        lines.append(
            f"The bare loop got {share:.0%} of a core: other work took the rest, or the environment waits for others. "
            "CPU/step, the CPU time of one environment step, does not depend on that."
        )
    return lines


def _share(baseline: Entry) -> float:
    """How much of a core the bare loop had."""
    return statistics.median([sample.cpu_s / sample.seconds for sample in baseline.samples])


def conclusions(run: Run) -> list[str]:
    """Say in plain words what a run showed."""
    lines = []
    for ours, theirs in _PAIRS:
        ratio = run.ratio(ours, theirs)
        if ratio is not None:
            lines.append(f"{_label(run, ours)} is {_times(ratio)} {_the(_label(run, theirs))} here.")
    return [*lines, *filter(None, (_verdict(run), _twin_line(run)))]


def _twin_line(run: Run) -> str | None:
    """Say what the row of the compiled twin is, and how to have it."""
    twin, ratio = find_twin(run.env), run.ratio(_KERNEL, BASELINE)
    if twin is None or ratio is None:
        return None
    return (
        f"{_label(run, _KERNEL)} is {twin}, the compiled twin of {run.env}: {_times(ratio)} the bare loop here. Write "
        f'envfleet.make("{twin}", num_envs={run.num_envs}, backend="kernel"); {HOW_EQUAL}'
    )


def _verdict(run: Run) -> str | None:
    """Say whether worker processes pay, going by the best fleet with and without them."""
    # Not "auto": it is one of the others, and which is the question. Nor compiled code, which is another's.
    others = {"envfleet-auto", _KERNEL}
    ours = [entry for entry in run.measured if is_ours(entry.contender) and entry.contender not in others]
    inside = max((entry.rate for entry in ours if "process" not in entry.contender), default=None)
    outside = max((entry.rate for entry in ours if "process" in entry.contender), default=None)
    baseline = run.find(BASELINE)
    if inside is None or outside is None or baseline is None:
        return None
    step = f"A step of this environment takes {1e6 / baseline.rate:,.0f} µs"
    if outside > _CLEAR * inside:
        return f"{step}: worker processes pay, {outside / inside:.1f}× one process."
    if _share(baseline) < _QUIET_SHARE:  # with cores of their own they might pay
        return None
    many = count(run.num_envs, "sub-environment")
    if inside > _CLEAR * outside:
        return f"{step}: with {many} that is too little for worker processes to pay here; one process is faster."
    return f"{step}: with {many} worker processes and one process are about as fast here."


def best_of_ours(run: Run) -> Entry | None:
    """Find the fastest fleet of a run that steps the same code as the peers, which a compiled twin does not."""
    other = _KERNEL if find_twin(run.env) else None
    ours = [entry for entry in run.measured if is_ours(entry.contender) and entry.contender != other]
    return max(ours, key=lambda entry: entry.rate, default=None)


def duration(seconds: float) -> str:
    """Write a duration in the unit that fits.

    >>> duration(0.0000046), duration(0.000012), duration(0.0345), duration(2.5)
    ('4.6 µs', '12 µs', '34 ms', '2.5 s')
    """
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return _two_digits(seconds / factor, unit)
    return _two_digits(seconds / 1e-6, "µs")


def size(size_bytes: float) -> str:
    """Write a number of bytes in the unit that fits.

    >>> size(80), size(28_224), size(3_500_000)
    ('80 B', '28 kB', '3.5 MB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return _two_digits(size_bytes / factor, unit)
    return f"{size_bytes:.0f} B"


def _two_digits(value: float, unit: str) -> str:
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


def _times(ratio: float | None, mark: str = "×") -> str:
    if ratio is None:
        return "–"
    return f"{ratio:.2f}{mark}" if ratio < 10 else f"{ratio:.0f}{mark}"


def _label(run: Run, contender: str) -> str:
    entry = run.find(contender)
    return contender if entry is None else entry.label


def _the(label: str) -> str:
    return f"the {label}" if label.startswith("bare") else label


def count(number: int, noun: str) -> str:
    """Write a number of things.

    >>> count(1, "worker"), count(2, "worker")
    ('1 worker', '2 workers')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
