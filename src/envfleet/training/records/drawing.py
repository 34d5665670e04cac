"""How figures of runs look, and what their curves are made of."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from envfleet.errors import MissingDependency
from envfleet.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "figure.facecolor": "white",
    "figure.dpi": 120,
}
_BINS = 300


def style() -> AbstractContextManager[None]:
    """Make figures look as ours do while this is entered.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingDependency("plots need matplotlib: pip install 'envfleet[train]'") from error
    return mpl.rc_context(_STYLE)


def new_figure(panels: int, *, width: float = 4.6, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    """Make a figure with so many panels, in rows of three, each `width` times `height` inches."""
    from matplotlib.figure import Figure

    columns = min(panels, 3)
    rows = -(-panels // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for panel in axes[panels:]:
        panel.set_axis_off()
    return figure, axes[:panels]


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG."""
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format="png")
    return path


def binned(frame: pl.DataFrame, *figures: pl.Expr, least: int = 5) -> pl.DataFrame:
    """Put the rows of a table into bins of equal length on the axis of transitions, and reckon something for each.

    Args:
        frame: The table, with a column of transitions.
        figures: What to reckon.
        least: Rows that a bin has on average if there are fewer bins than fit into a figure.

    Returns:
        A row per bin that is not empty: `transitions` (the mean of its rows), then the figures.
    """
    last = pl.col("transitions").max().clip(1)
    count = max(min(_BINS, len(frame) // least), 1)
    number = (pl.col("transitions") * count // (last + 1)).alias("bin")
    return (
        frame.with_columns(number).group_by("bin").agg(pl.col("transitions").mean(), *figures).sort("bin").drop("bin")
    )


def mark_phases(panel: Axes, phases: list[tuple[str, int]]) -> None:
    """Draw a line where each phase begins, and write its name beside it."""
    if len(phases) < 2:
        return
    right = panel.get_xlim()[1]
    for name, begin in phases:
        if begin > right:
            continue
        panel.axvline(begin, color="#777777", linewidth=0.8, linestyle=":")
        panel.annotate(
            name, (begin, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -2), textcoords="offset points",
            fontsize=7, color="#555555", va="top", rotation=90,
        )  # fmt: skip


def label_transitions(panel: Axes) -> None:
    """Label the horizontal axis, with 2M for two million."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    panel.set_xlabel("transitions")
    panel.xaxis.set_major_locator(MaxNLocator(6))
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.set_xlim(left=0)
