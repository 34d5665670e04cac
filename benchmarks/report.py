"""Report of a result: a Markdown table, a plot, a marked block of a documentation page, JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.case import Case, Record, Result

from envfleet.bench.results import Machine, figures_json, median_ratio
from envfleet.files import replacing, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = ("#d55e00", "#0072b2", "#999999", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c2d04", "#000000")


def table(case: Case, result: Result) -> str:
    """Return the Markdown table of a result, followed by the floors of its case."""
    rows = _ratio_rows(case, result) if case.pairs else _contender_rows(case, result)
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    floors = [
        f"- {'met' if value >= floor else 'MISSED'}: {ours} ÷ {theirs}, {setting}: {value:.2f}, at least {floor:.2f}"
        for (ours, theirs), setting, value, floor in _floors(case, result)
    ]
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body, *([""] if floors else []), *floors]) + "\n"


def misses_floor(case: Case, result: Result) -> bool:
    """Return whether a measured ratio is below its floor."""
    return any(value < floor for _, _, value, floor in _floors(case, result))


def _floors(case: Case, result: Result) -> Iterator[tuple[tuple[str, str], str, float, float]]:
    """Yield pair, setting, measured ratio and floor."""
    for pair, settings in case.floors.items():
        for setting, floor in settings.items():
            if (value := ratio(case, result, setting, *pair)) is not None:
                yield pair, setting, value, floor


def ratio(case: Case, result: Result, setting: str, ours: str, theirs: str) -> float | None:
    """Return how many times as good the first contender is, or `None` if one of them was not measured."""
    values = {one.contender: one.values for one in result.records if one.setting == setting}
    if not values.get(ours) or not values.get(theirs):
        return None
    pair = values[theirs], values[ours]
    return median_ratio(*(pair if case.is_cost else reversed(pair)))


def _ratio_rows(case: Case, result: Result) -> list[list[str]]:
    """Return a row per setting: our figures, then their ratios to the peers'."""
    contenders = {one.contender for one in result.records}
    shown = [ours for ours in case.pairs if ours in contenders]
    pairs = [(ours, theirs) for ours in shown for theirs in case.pairs[ours] if theirs in contenders]
    notes = list(dict.fromkeys(key for one in result.records for key in one.notes))
    rows = [
        [
            "",
            *(f"{name}, {case.unit}" for name in shown),
            *(f"{b} ÷ {a}" if case.is_cost else f"{a} ÷ {b}" for a, b in pairs),
            *notes,
        ]
    ]
    for setting in dict.fromkeys(one.setting for one in result.records):
        records = {one.contender: one for one in result.records if one.setting == setting}
        cells = [number(statistics.median(records[name].values)) if name in records else "–" for name in shown]
        for pair in pairs:
            value = ratio(case, result, setting, *pair)
            cells.append("–" if value is None else f"{number(value)} ×")
        cells += [
            "; ".join(f"{name} {one.notes[key]}" for name, one in records.items() if key in one.notes) for key in notes
        ]
        rows.append([setting, *cells])
    return rows


def _contender_rows(case: Case, result: Result) -> list[list[str]]:
    """Return a row per setting and contender: mean and spread of the figures, then the notes."""
    notes = list(dict.fromkeys(key for one in result.records for key in one.notes))
    has_values = any(one.values for one in result.records)
    rows = [["", "", *([case.unit] if has_values else []), *notes]]
    for one in result.records:
        spread = f" ± {number(statistics.stdev(one.values))}" if len(one.values) > 1 else ""
        value = number(statistics.fmean(one.values)) + spread if one.values else "–"
        cells = [value] if has_values else []
        rows.append([one.setting, one.contender, *cells, *(one.notes.get(key, "") for key in notes)])
    return rows


def number(value: float) -> str:
    """Write a number with three digits.

    >>> number(0.01234), number(12.34), number(5_432.1), number(1_234_567)
    ('0.0123', '12.3', '5,432', '1.23 M')
    """
    for letter, factor in (("G", 1e9), ("M", 1e6)):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {letter}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine_line(result: Result) -> str:
    """Describe the machine, its load and the date."""
    machine = result.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items() if name != "envfleet")
    cores = f"{machine.usable_cores:g} cores, load {machine.load:g} at the start"
    return f"{machine.cpu}, {cores}, Python {machine.python}, {versions}, {result.started_at[:10]}."


def write_page(case: Case, result: Result, root: Path) -> Path:
    """Replace the marked block of the case's page by the table.

    Raises:
        ValueError: The page lacks the block.
    """
    path, mark = root / case.page, f"<!-- benchmark {case.name} -->\n"
    parts = path.read_text(encoding="utf-8").split(mark)
    if not case.page or len(parts) != 3:
        raise ValueError(f"{case.page or 'no page'} lacks a block between two lines {mark.strip()}: add it")
    block = f"{mark}\n{table(case, result)}\n{machine_line(result)}\n\n{mark}"
    write_whole(path, parts[0] + block + parts[2])
    return path


def write_json(path: Path, results: Sequence[Result]) -> None:
    """Write all figures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, figures_json("benchmarks", _Results(list(results))))


def read_json(path: Path) -> list[Result]:
    """Read results that `write_json` wrote."""
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    return [
        Result(
            **{**one, "machine": Machine(**one["machine"]), "records": [Record(**record) for record in one["records"]]}
        )
        for one in results
    ]


@dataclasses.dataclass(frozen=True)
class _Results:
    results: list[Result]


def plot(results: Iterable[tuple[Case, Result]], path: Path) -> None:
    """Draw learning curves where there are any, else a dot per contender and setting, from lowest to highest."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels: list[tuple[Callable[[Axes, list[Record]], None], list[Record], str]] = []
    for case, result in results:
        measured = [one for one in result.records if one.values]
        if any(one.curves for one in measured):
            settings = dict.fromkeys(one.setting for one in measured)
            panels += [(_draw_curves, [one for one in measured if one.setting == name], name) for name in settings]
        elif measured:
            panels.append((_draw_dots, measured, f"{case.name}: {case.unit}"))
    rows, columns = -(-len(panels) // 2), min(2, len(panels))
    heights = [
        1.0 + 0.3 * len({one.setting for one in records}) + 0.2 * len({one.contender for one in records})
        for _, records, _ in panels
    ]
    height = max([3.6, *heights])
    with mpl.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "savefig.dpi": 150}):
        figure = Figure((5.4 * columns, height * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, (draw, records, title) in zip(grid, panels, strict=False):
            draw(axes, records)
            axes.grid(color="#e4e4e4", linewidth=0.6)
            axes.legend(title=title, alignment="left", frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0))
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        with replacing(path) as unfinished:
            figure.savefig(unfinished)


def _draw_curves(axes: Axes, records: list[Record]) -> None:
    for color, record in zip(_COLORS, records, strict=False):
        for index, curve in enumerate(record.curves):
            label = f"{record.contender} ({len(record.curves)} seeds)" if index == 0 else None
            axes.plot(*zip(*curve, strict=True), color=color, linewidth=1, alpha=0.7, label=label)
    axes.set_xlabel("transitions")


def _draw_dots(axes: Axes, records: list[Record]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    settings = list(dict.fromkeys(one.setting for one in records))
    contenders = list(dict.fromkeys(one.contender for one in records))
    for place, name in enumerate(contenders):
        own = [one for one in records if one.contender == name]
        middles = [statistics.median(one.values) for one in own]
        reach = [
            [middle - min(one.values) for middle, one in zip(middles, own, strict=True)],
            [max(one.values) - middle for middle, one in zip(middles, own, strict=True)],
        ]
        heights = [settings.index(one.setting) + 0.5 * (place / max(1, len(contenders) - 1) - 0.5) for one in own]
        axes.errorbar(
            middles, heights, xerr=reach, fmt="o", color=_COLORS[place % len(_COLORS)], label=name, markersize=6
        )
    positive = [value for one in records for value in one.values if value > 0]
    if positive and math.log10(max(positive) / min(positive)) > 1:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(lambda value, _: number(value))
    axes.set_yticks(range(len(settings)), settings)
    axes.invert_yaxis()
