"""The figure: grouped bars of steps/s, one panel per workload, fit for a paper."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envfleet.bench.contenders import CONTENDERS, is_ours
from envfleet.bench.results import Report, Run
from envfleet.core.files import replacing
from envfleet.errors import InvalidArgument

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart: warm and strong for ours, cool or grey for peers.
_COLOURS = {
    "loop": "#999999",
    "loop-default": "#c8c8c8",
    "gymnasium-sync": "#9ecae9",
    "gymnasium-async": "#0072b2",
    "sb3-dummy": "#b7e0d4",
    "sb3-subproc": "#009e73",
    "envpool": "#cc79a7",
    "envfleet-serial": "#f0c75e",
    "envfleet-thread": "#e69f00",
    "envfleet-process": "#d55e00",
    "envfleet-auto": "#8c2d04",
    "envfleet-kernel": "#000000",
}
_MORE_OF_OURS = ("#f2a477", "#a34400", "#6b2d00")  # fleets that differ in their options only
_OTHER = "#555555"
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "xtick.major.size": 0,
    "figure.facecolor": "white",
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
_LOG_FROM = 8.0  # a linear axis hides bars this much shorter than the longest


def check_plot(path: Path) -> None:
    """Check that a plot can be drawn into a file of this name, before anything is measured for it.

    Raises:
        InvalidArgument: matplotlib is missing, or the ending is none it knows.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidArgument(
            "a plot needs matplotlib, which is not installed: pip install 'envfleet[bench]' (or leave --plot out)."
        ) from error
    if path.suffix.lower().removeprefix(".") not in Figure().canvas.get_supported_filetypes():
        raise InvalidArgument(f"cannot draw {path.name}: end the name in .png, .pdf or .svg.")


def plot_report(report: Report, path: Path) -> None:
    """Draw a report into a file; its ending (`.png`, `.pdf`, `.svg`) says the format.

    Raises:
        InvalidArgument: matplotlib is missing, the ending is none it knows, or there is nothing to draw.
    """
    check_plot(path)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = _panels(report.runs)
    if not panels:
        raise InvalidArgument("nothing was measured, so there is nothing to draw: see the failures above.")
    with mpl.rc_context(_STYLE):
        figure = Figure()
        if len(panels) == 1 and len(panels[0]) == 1:
            figure.set_size_inches(6.5, 0.8 + 0.32 * len(panels[0][0].measured))
            _draw_single(figure, panels[0][0])
        else:
            _draw_panels(figure, panels)
        figure.text(0.995, 0.004, _caption(report), ha="right", va="bottom", fontsize=6, color="#777777")
        margin = 0.16 / figure.get_size_inches()[1]  # inches kept free for the caption
        figure.set_layout_engine("constrained", rect=(0, margin, 1, 1 - margin), h_pad=0.08, w_pad=0.08)
        with replacing(path) as unfinished:
            figure.savefig(unfinished)


def _panels(runs: Sequence[Run]) -> list[list[Run]]:
    """Group runs by workload and workers, each group by rising number of sub-environments."""
    groups: dict[tuple[str, int | None], list[Run]] = {}
    for run in runs:
        if run.measured:
            groups.setdefault((run.workload, run.workers), []).append(run)
    return [sorted(group, key=lambda run: run.num_envs) for group in groups.values()]


def _draw_single(figure: Figure, run: Run) -> None:
    axes = figure.subplots()
    entries = sorted(run.measured, key=lambda entry: entry.rate)
    rates = [entry.rate for entry in entries]
    palette = _colours([entry.contender for entry in entries])
    colours = [palette[entry.contender] for entry in entries]
    axes.barh([entry.label for entry in entries], rates, color=colours, height=0.72)
    lows = [entry.rate - entry.spread[0] for entry in entries]
    highs = [entry.spread[1] - entry.rate for entry in entries]
    axes.errorbar(rates, range(len(rates)), xerr=[lows, highs], fmt="none", ecolor="#333333", elinewidth=0.8, capsize=2)
    longest = max(entry.spread[1] for entry in entries)
    for place, entry in enumerate(entries):
        axes.text(entry.spread[1] + 0.012 * longest, place, f"{entry.rate:,.0f}", va="center", fontsize=8)
    axes.set_xlim(0, longest * 1.14)
    axes.xaxis.set_major_formatter(_short_number)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("environment steps per second (median and range of the rounds)")
    for tick, entry in zip(axes.get_yticklabels(), entries, strict=True):
        tick.set_fontweight("bold" if is_ours(entry.contender) else "normal")
    title = textwrap.fill(_title(run) + f", {run.num_envs} sub-environments", 72)  # characters that fit on a line
    figure.suptitle(title, x=0.02, ha="left", fontsize=10, fontweight="bold")


def _draw_panels(figure: Any, panels: Sequence[Sequence[Run]]) -> None:
    columns = 1 if len(panels) == 1 else 2
    rows = -(-len(panels) // columns)
    figure.set_size_inches(7.2 if columns == 1 else 10.5, 0.9 + 2.6 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    present = {entry.contender: entry.label for runs in panels for run in runs for entry in run.measured}
    names = [*(name for name in CONTENDERS if name in present), *(name for name in present if name not in CONTENDERS)]
    colours = _colours(names)
    for axes, runs in zip(grid, panels, strict=False):
        _draw_groups(axes, runs, colours)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    handles = [_patch(colours[name], present[name]) for name in names]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(4, len(handles)), frameon=False, fontsize=8)


def _draw_groups(axes: Axes, runs: Sequence[Run], colours: Mapping[str, str]) -> None:
    from matplotlib.ticker import LogLocator

    names = [name for name in colours if any(run.find(name) for run in runs)]
    width = 0.84 / len(names)
    for slot, name in enumerate(names):
        points = [(place, entry) for place, run in enumerate(runs) if (entry := run.find(name)) is not None]
        axes.bar(
            [place - 0.42 + width * (slot + 0.5) for place, _ in points],
            [entry.rate for _, entry in points],
            width=width * 0.94,
            color=colours[name],
            yerr=[
                [entry.rate - entry.spread[0] for _, entry in points],
                [entry.spread[1] - entry.rate for _, entry in points],
            ],
            error_kw={"elinewidth": 0.6, "ecolor": "#333333"},
        )
    rates = [entry.rate for run in runs for entry in run.measured]
    if max(rates) > _LOG_FROM * min(rates):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if max(rates) < 40 * min(rates) else (1.0,)))
        axes.set_ylim(min(rates) / 2, max(rates) * 2)
    axes.yaxis.set_major_formatter(_short_number)
    axes.set_xticks(range(len(runs)), [str(run.num_envs) for run in runs])
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("sub-environments")
    axes.set_ylabel("steps per second")
    axes.set_title(textwrap.fill(_title(runs[0]), 56), loc="left", fontsize=9, fontweight="bold")


def _colours(names: Sequence[str]) -> dict[str, str]:
    """Give every contender its colour; more fleets of ours than are known share a family of oranges."""
    more = [name for name in names if name not in _COLOURS and is_ours(name)]
    extra = {name: _MORE_OF_OURS[place % len(_MORE_OF_OURS)] for place, name in enumerate(more)}
    return {name: _COLOURS.get(name) or extra.get(name, _OTHER) for name in names}


def _patch(colour: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=colour, label=label)


def _short_number(value: float, position: float = 0) -> str:
    """Write an axis value: 20 000 as 20k."""
    del position
    for letter, factor in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:g}{letter}"
    return f"{value:g}"


def _title(run: Run) -> str:
    workers = "" if run.workers is None else f", {run.workers} worker{'' if run.workers == 1 else 's'}"
    return (run.env if run.workload == run.env else f"{run.workload}: {run.env}") + workers


def _caption(report: Report) -> str:
    machine = report.machine
    return f"{machine.cpu}, {machine.usable_cores:g} usable cores, Python {machine.python}, {report.started_at[:10]}"
