"""The figure: grouped bars of steps/s, one panel per workload, fit for a paper."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envfleet.bench.contenders import CONTENDERS, is_ours
from envfleet.bench.report import count
from envfleet.bench.results import Report, Run
from envfleet.errors import InvalidArgument
from envfleet.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, which colour-blind readers can tell apart: warm and strong for ours, cool or grey for peers.
_COLOURS = {
    "loop": "#999999",
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
        _draw_panels(figure, panels)
        cores, python = f"{report.machine.usable_cores:g} usable cores", f"Python {report.machine.python}"
        caption = f"{report.machine.cpu}, {cores}, {python}, {report.started_at[:10]}"
        figure.text(0.995, 0.004, caption, ha="right", va="bottom", fontsize=6, color="#777777")
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


def _draw_panels(figure: Any, panels: Sequence[Sequence[Run]]) -> None:
    from matplotlib.patches import Patch

    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure.set_size_inches(7.2 if columns == 1 else 10.5, 0.9 + 2.6 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    present = {entry.contender: entry.label for runs in panels for run in runs for entry in run.measured}
    colours = _colours(sorted(present, key=[*CONTENDERS, *present].index))
    for axes, runs in zip(grid, panels, strict=False):
        _draw_groups(axes, runs, colours)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    handles = [Patch(facecolor=colour, label=present[name]) for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(4, len(handles)), frameon=False, fontsize=8)


def _draw_groups(axes: Axes, runs: Sequence[Run], colours: Mapping[str, str]) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator

    names = [name for name in colours if any(run.find(name) for run in runs)]
    width = 0.84 / len(names)
    for slot, name in enumerate(names):
        found = {place: entry for place, run in enumerate(runs) if (entry := run.find(name)) is not None}
        places, heights = [place - 0.42 + width * (slot + 0.5) for place in found], [one.rate for one in found.values()]
        ranges = [(one.rate - one.spread[0], one.spread[1] - one.rate) for one in found.values()]
        error: Any = {"yerr": list(zip(*ranges, strict=True)), "error_kw": {"elinewidth": 0.6, "ecolor": "#333333"}}
        axes.bar(places, heights, width=width * 0.94, color=colours[name], **error)
    rates = [entry.rate for run in runs for entry in run.measured]
    if max(rates) > _LOG_FROM * min(rates):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if max(rates) < 40 * min(rates) else (1.0,)))
        axes.set_ylim(min(rates) / 2, max(rates) * 2)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))  # 20k
    axes.set_xticks(range(len(runs)), [str(run.num_envs) for run in runs])
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("sub-environments")
    axes.set_ylabel("steps per second")
    workers = "" if runs[0].workers is None else f", {count(runs[0].workers, 'worker')}"
    title = (runs[0].env if runs[0].workload == runs[0].env else f"{runs[0].workload}: {runs[0].env}") + workers
    axes.set_title(textwrap.fill(title, 56), loc="left", fontsize=9, fontweight="bold")


def _colours(names: Sequence[str]) -> dict[str, str]:
    """Give every contender its colour; more fleets of ours than are known share a family of oranges."""
    more = itertools.cycle(_MORE_OF_OURS)
    return {name: _COLOURS.get(name) or (next(more) if is_ours(name) else "#555555") for name in names}
