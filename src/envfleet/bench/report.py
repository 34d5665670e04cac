"""Benchmark results as tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from envfleet.bench.contenders import BASELINE, is_ours
from envfleet.bench.results import ContenderResult, Machine, Report, Run
from envfleet.kernels.registration import find_twin

HOW_EQUAL = "docs/kernels.md says how equal the two are"
_NOISY = 1.25
_NEARLY = 0.95
_KERNEL = "envfleet-kernel"
_COMPARED = ("envfleet-serial", "envfleet-process", _KERNEL)


def show_report(report: Report, console: Console) -> None:
    """Print a report that fits into 80 columns: the machine, then per run a table and notes."""
    console.print(f"[dim]{escape(machine_line(report.machine))}[/dim]")
    for run in report.runs:
        console.print()
        console.print(run_table(run))
        console.print()
        for line in notes(run):
            console.print(f"[dim]{escape(line)}[/dim]")
        if (sentence := advice(run)) is not None:
            console.print(f"[bold]{escape(sentence)}[/bold]")


def machine_line(machine: Machine) -> str:
    """Describe the machine in one line."""
    cores = f"{machine.usable_cores:g} of {machine.cores} cores usable · load {machine.load:g}"
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return f"{machine.cpu} · {cores} · Python {machine.python} · {versions}"


def make_table(title: str | None, *columns: str) -> Table:
    """Return an empty table; all columns except the first hold numbers."""
    table = Table(title=title, title_style="bold", title_justify="left", header_style="dim", box=None, pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left", no_wrap=bool(place))
    return table


def run_table(run: Run) -> Table:
    """Return the table of a run, fastest first: steps/s, ratios of our fleets, start-up time and memory."""
    ours = compared(run)
    names = [f"{entry.label.removeprefix('envfleet ')}\nis" for entry in ours]
    title = f"{run.num_envs} × {run_title(run)}"
    table = make_table(title, "contender", "steps/s", "× loop", *names, "start", "memory\nper env")
    for entry in run.measured:
        ratios = ["" if one is entry else _times(run.ratio(one.contender, entry.contender)) for one in ours]
        table.add_row(
            entry.label,
            f"{entry.rate:,.0f}",
            _times(run.ratio(entry.contender, BASELINE), mark=""),
            *ratios,
            "–" if entry.start_s is None else duration(entry.start_s),
            "–" if entry.memory_bytes is None else size(entry.memory_bytes / run.num_envs),
            style="green" if is_ours(entry.contender) else "",
        )
    return table


def run_title(run: Run) -> str:
    """Return the environment of a run, and the number of workers if it was given."""
    return run.env if run.workers is None else f"{run.env}, {count(run.workers, 'worker')}"


def compared(run: Run) -> list[ContenderResult]:
    """Return the fleets with a column of ratios: serial and process, or other fleets of ours.

    A compiled twin does not have one, since its code is not that of the others.
    """
    twin = _KERNEL if find_twin(run.env) else None
    ours = [entry for entry in run.entries if entry.rates and is_ours(entry.contender) and entry.contender != twin]
    return [entry for entry in ours if entry.contender in _COMPARED] or ours[:2]


def notes(run: Run) -> list[str]:
    """Return the contenders that were not measured, and a warning if the machine was noisy."""
    lines = [f"Not measured: {entry.label}: {entry.problem.rstrip('.')}." for entry in run.entries if entry.problem]
    baseline = run.find(BASELINE)
    if baseline is not None and (spread := baseline.spread)[1] > _NOISY * spread[0]:
        lines.append(
            f"The machine is noisy: the bare loop gave {spread[0]:,.0f} to {spread[1]:,.0f} steps/s in different "
            "rounds. Ratios are taken within a round and hold better than the steps/s."
        )
    return lines


def advice(run: Run) -> str | None:
    """Return one sentence: the line of code to use, and why; `None` if no fleet of ours was measured.

    The fastest fleet is recommended, or `auto` if it is nearly as fast. The compiled twin of an environment is another
    environment, so it is recommended next to the fastest fleet of the environment itself.
    """
    twin = run.find(_KERNEL) if find_twin(run.env) else None
    ours = [entry for entry in run.measured if is_ours(entry.contender) and entry is not twin]
    sentence = "" if twin is None else _twin_advice(run, twin)
    if ours:
        best, auto = ours[0], run.find("envfleet-auto")
        if auto is not None and (run.ratio(auto.contender, best.contender) or 0.0) >= _NEARLY:
            best = auto
        sentence = f"Use {best.line}: {_reason(run, best)}" + (f"; or {sentence}" if sentence else "")
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else None


def _twin_advice(run: Run, twin: ContenderResult) -> str:
    ratio = _times(run.ratio(_KERNEL, BASELINE)) if run.find(BASELINE) else None
    speed = f"{ratio} the steps of a bare loop" if ratio else f"{twin.rate:,.0f} steps/s"
    return f"use {twin.line}, the compiled twin of {run.env}: {speed} ({HOW_EQUAL})"


def _reason(run: Run, best: ContenderResult) -> str:
    """Compare the recommended fleet with the fastest vector environment of another library."""
    peers = [one for one in run.measured if not is_ours(one.contender) and one.contender != BASELINE]
    ratio = run.ratio(best.contender, peers[0].contender) if peers else None
    if ratio is None:
        return "the fastest fleet measured here"
    if ratio >= 1.0:
        return f"{_times(ratio)} the steps of {peers[0].label}, the fastest of the other libraries"
    return f"our fastest fleet here; {peers[0].label} makes {_times(1.0 / ratio)} its steps"


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(0.0000046), duration(0.000012), duration(0.0345), duration(2.5)
    ('4.6 µs', '12 µs', '34 ms', '2.5 s')
    """
    return _in_unit(seconds, (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)))


def size(size_bytes: float) -> str:
    """Format a number of bytes.

    >>> size(80), size(28_224), size(3_500_000)
    ('80 B', '28 kB', '3.5 MB')
    """
    return _in_unit(size_bytes, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)))


def _in_unit(value: float, units: Sequence[tuple[str, float]]) -> str:
    """Format a value in the largest unit that does not exceed it, with two digits."""
    unit, factor = next((one for one in units if value >= one[1]), units[-1])
    digits = 1 if value < 9.95 * factor and unit != "B" else 0
    return f"{value / factor:.{digits}f} {unit}"


def _times(ratio: float | None, mark: str = "×") -> str:
    if ratio is None:
        return "–"
    return f"{ratio:.2f}{mark}" if ratio < 10 else f"{ratio:.0f}{mark}"


def count(number: int, noun: str) -> str:
    """Format a number of things.

    >>> count(1, "worker"), count(2, "worker")
    ('1 worker', '2 workers')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
