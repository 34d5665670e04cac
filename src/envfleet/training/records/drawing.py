"""How figures of runs look, and what their curves are made of."""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from envfleet.training.records.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
WIN, DRAW, LOSS = "#009e73", "#bbbbbb", "#d55e00"
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
    "figure.facecolor": "white",
    "savefig.dpi": 150,
}
_BINS = 150


def style() -> AbstractContextManager[None]:
    """Make figures look as ours do while this is entered."""
    import matplotlib as mpl

    return mpl.rc_context(_STYLE)


def new_figure(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Make a figure of `rows` times `columns` panels, `width` times `height` inches in all."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    return figure, [panel for row in panels for panel in row]


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG."""
    content = io.BytesIO()
    figure.savefig(content, format="png")
    write_whole(path, content.getvalue())
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
    if frame.is_empty():
        return frame.select(pl.col("transitions").cast(pl.Float64), *(figure for figure in figures))
    last = max(int(frame["transitions"].max() or 1), 1)  # type: ignore[arg-type]  # of a column of integers
    count = max(min(_BINS, len(frame) // least), 1)
    number = (pl.col("transitions") * count // (last + 1)).alias("bin")
    return frame.group_by(number).agg(pl.col("transitions").mean(), *figures).sort("bin").drop("bin")


def mark_phases(panel: Axes, phases: list[tuple[str, int]]) -> None:
    """Draw a line where each phase but the first begins, and write all names on top."""
    if len(phases) < 2:
        return
    left, right = panel.get_xlim()
    for number, (name, begin) in enumerate(phases):
        place = begin if number else left
        if not left <= place <= right:
            continue
        if number:
            panel.axvline(place, color="#777777", linewidth=0.8, linestyle=":")
        label = panel.annotate(
            name, (place, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -2), textcoords="offset points",
            fontsize=7, color="#555555", va="top", rotation=90,
        )  # fmt: skip
        label.set_in_layout(False)


def label_transitions(panel: Axes) -> None:
    """Label the horizontal axis, with 2M for two million."""
    from matplotlib.ticker import EngFormatter

    panel.set_xlabel("transitions")
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.set_xlim(left=0)
