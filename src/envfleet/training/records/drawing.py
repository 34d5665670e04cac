"""How figures of runs look, and what their curves are made of."""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from envfleet.errors import MissingDependency
from envfleet.files import write_whole

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
}
_BINS = 300
_DPI = 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.6, 0.2, 0.35, 0.5  # inches, around all panels
_BETWEEN, _UNDER = 0.75, 0.8  # inches, from panel to panel


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


def new_figure(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Make a figure of `rows` times `columns` panels, `width` times `height` inches in all.

    Margins are fixed: to find out how much labels need takes longer than to draw everything.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=_DPI)
    panels = figure.subplots(rows, columns, squeeze=False)
    panel_width = (width - _LEFT - _RIGHT - (columns - 1) * _BETWEEN) / columns
    panel_height = (height - _TOP - _BOTTOM - (rows - 1) * _UNDER) / rows
    figure.subplots_adjust(
        left=_LEFT / width, right=1 - _RIGHT / width, wspace=_BETWEEN / panel_width,
        bottom=_BOTTOM / height, top=1 - _TOP / height, hspace=_UNDER / panel_height,
    )  # fmt: skip
    return figure, [panel for row in panels for panel in row]


def add_below(figure: Figure, inches: float) -> None:
    """Make a figure taller, with room below its panels."""
    before, margins = figure.get_figheight(), figure.subplotpars
    after = before + inches
    figure.set_figheight(after)
    figure.subplots_adjust(
        bottom=(margins.bottom * before + inches) / after, top=1 - (1 - margins.top) * before / after
    )


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.image import imsave

    canvas: Any = FigureCanvasAgg(figure)  # whose methods have no types
    content = io.BytesIO()
    canvas.draw()  # `savefig` would draw it twice
    imsave(content, np.asarray(canvas.buffer_rgba()), format="png", dpi=_DPI)
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


def draw_band(panel: Axes, times: pl.Series, low: pl.Series, high: pl.Series, colour: str) -> None:
    """Draw how sure the points of a curve are, also where there is one alone."""
    if len(times) == 1:
        panel.vlines(times, low, high, color=colour, alpha=0.4)
    else:
        panel.fill_between(times, low, high, color=colour, alpha=0.2, linewidth=0)


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
        panel.annotate(
            name, (place, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -2), textcoords="offset points",
            fontsize=7, color="#555555", va="top", rotation=90,
        )  # fmt: skip


def label_transitions(panel: Axes) -> None:
    """Label the horizontal axis, with 2M for two million."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    panel.set_xlabel("transitions")
    panel.xaxis.set_major_locator(MaxNLocator(6))
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.set_xlim(left=0)
