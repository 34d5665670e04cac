"""Plot of a report: grouped bars of steps/s, one panel per workload."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envfleet.bench.contenders import is_ours
from envfleet.bench.report import run_title
from envfleet.bench.results import Report, Run
from envfleet.errors import InvalidArgument
from envfleet.extras import missing
from envfleet.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colors by Okabe and Ito, distinct for color-blind readers: warm for ours, cool or gray for peers.
_OURS = ("#d55e00", "#e69f00", "#8c2d04", "#000000", "#f0c75e")
_PEERS = ("#999999", "#9ecae9", "#0072b2", "#b7e0d4", "#009e73", "#cc79a7")
_LOG_FROM = 8.0  # on a linear axis, bars shorter than this fraction of the longest are hard to see


def check_plot(path: Path) -> None:
    """Check that a plot can be written to a file of this name, before the measurement.

    Raises:
        MissingDependency: matplotlib is not installed.
        InvalidArgument: The suffix is not supported.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing("a plot", error) from error
    if path.suffix.lower().removeprefix(".") not in Figure().canvas.get_supported_filetypes():
        raise InvalidArgument(f"the format of {path.name} is not supported: use the suffix .png, .pdf or .svg.")


def plot_report(report: Report, path: Path) -> None:
    """Draw a report into a file; the suffix (`.png`, `.pdf`, `.svg`) selects the format.

    Raises:
        MissingDependency: matplotlib is not installed.
        InvalidArgument: The suffix is not supported, or nothing was measured.
    """
    check_plot(path)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels: dict[tuple[str, int | None], list[Run]] = {}
    for run in sorted(report.runs, key=lambda run: run.num_envs):
        if run.measured:
            panels.setdefault((run.workload, run.workers), []).append(run)
    if not panels:
        raise InvalidArgument("nothing was measured, so the plot would be empty: see the failures above.")
    labels = {entry.contender: entry.label for run in report.runs for entry in run.entries if entry.rates}
    ours = [name for name in labels if is_ours(name)]
    peers = [name for name in labels if name not in ours]
    colors = {
        name: palette[place % len(palette)]
        for names, palette in ((peers, _PEERS), (ours, _OURS))
        for place, name in enumerate(names)
    }
    rows, columns = -(-len(panels) // 2), min(2, len(panels))
    with mpl.rc_context({"font.size": 9, "savefig.dpi": 200, "svg.fonttype": "none", "pdf.fonttype": 42}):
        figure = Figure((7.2 if columns == 1 else 10.5, 2.6 * rows + 0.9), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, runs in zip(grid, panels.values(), strict=False):
            _draw_groups(axes, runs, colors)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        handles = [mpl.patches.Patch(color=color, label=labels[name]) for name, color in colors.items()]
        figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False, fontsize=8)
        cores = f"{report.machine.usable_cores:g} usable cores, Python {report.machine.python}"
        figure.supxlabel(f"{report.machine.cpu}, {cores}, {report.started_at[:10]}", fontsize=6, color="#777777")
        with replacing(path) as unfinished:
            figure.savefig(unfinished)


def _draw_groups(axes: Axes, runs: Sequence[Run], colors: Mapping[str, str]) -> None:
    """Draw a group of bars per run, with lines from the lowest to the highest measurement."""
    names = [name for name in colors if any(run.find(name) for run in runs)]
    width = 0.84 / len(names)
    for slot, name in enumerate(names):
        for place, run in enumerate(runs):
            if (entry := run.find(name)) is not None:
                low, high = entry.spread
                middle, error = place - 0.42 + width * (slot + 0.5), [[entry.rate - low], [high - entry.rate]]
                axes.bar(middle, entry.rate, width * 0.94, color=colors[name], yerr=error, ecolor="#333333")
    rates = [entry.rate for run in runs for entry in run.measured]
    if max(rates) > _LOG_FROM * min(rates):
        axes.set_yscale("log")
        axes.set_ylim(min(rates) / 2, max(rates) * 2)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(axis="y", which="minor", labelleft=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xticks(range(len(runs)), [str(run.num_envs) for run in runs])
    axes.set_xlabel("sub-environments")
    axes.set_ylabel("steps per second")
    axes.set_title(textwrap.fill(run_title(runs[0]), 56), loc="left", fontsize=9, fontweight="bold")
