"""Figures of runs, a curve per run in each panel, and of tournaments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from envfleet.errors import InvalidArgument
from envfleet.extras import missing
from envfleet.files import replacing
from envfleet.training.evaluation import Tournament, anchors_among
from envfleet.training.events import LEARNER
from envfleet.training.phases import NOBODY
from envfleet.training.records.tables import RunHistory, read_history

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Histories = Sequence[RunHistory]
Draw = Callable[["Axes", RunHistory, str], None]
"""Function that draws a run into a panel, in its color."""
_SMOOTHED = 12  # a point is the mean of this part of the whole curve
_MOST_NUMBERS = 16  # players, above which numbers in the cells could not be read
_LETTER = 0.08  # inches
_STYLE = Path(__file__).with_suffix(".mplstyle")
_BINS = 300


# ---------------------------------------------------------------------- how figures look


def style() -> AbstractContextManager[None]:
    """Context with the style of all figures.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    try:
        from matplotlib import style as styles
    except ImportError as error:
        raise missing("a plot", error) from error
    return styles.context(_STYLE)


def new_figure(panels: int, *, width: float = 4.6, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels, in rows of three, each `width` × `height` inches."""
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
    """Aggregate the rows of a table in bins of equal length on the axis of transitions.

    Args:
        frame: Table with a column of transitions.
        figures: Aggregations per bin.
        least: Minimum mean number of rows per bin; there are fewer bins for short tables.

    Returns:
        One row per non-empty bin: the mean of `transitions`, then the aggregations.
    """
    last = pl.col("transitions").max().clip(1)
    count = max(min(_BINS, len(frame) // least), 1)
    number = (pl.col("transitions") * count // (last + 1)).alias("bin")
    bins = frame.with_columns(number).group_by("bin")
    return bins.agg(pl.col("transitions").mean(), *figures).sort("bin").drop("bin")


def mark_phases(panel: Axes, phases: list[tuple[str, int]]) -> None:
    """Draw a line at the start of each phase, labeled with its name."""
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
    """Label the x axis, with 2M for two million."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    panel.set_xlabel("transitions")
    panel.xaxis.set_major_locator(MaxNLocator(6))
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.set_xlim(left=0)


# ---------------------------------------------------------------------- runs


def plot_runs(runs: Sequence[str | Path], out: str | Path | None = None) -> list[Path]:
    """Plot runs; several runs share the figures.

    Args:
        runs: Folders of runs.
        out: Folder of the figures; `None` for `plots` in the folder of a single run.

    Returns:
        Files of returns, win rates, evaluations and losses, as far as there is data.

    Raises:
        InvalidArgument: No runs, a path that is not a run, or several runs without `out`.
        MissingDependency: matplotlib is not installed.
    """
    if not runs:
        raise InvalidArgument("no run to plot: pass one or more folders of runs")
    if out is None and len(runs) > 1:
        raise InvalidArgument(f"{len(runs)} runs to compare, but no folder for the figures: pass one as `out` (--out)")
    histories = [read_history(run) for run in runs]
    folder = Path(runs[0]) / "plots" if out is None else Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Callable[[Histories], Figure | None]] = {
        "returns": draw_returns,
        "win_rate": draw_win_rates,
        "evaluations": draw_evaluations,
        "losses": draw_losses,
    }
    with style():
        drawn = {name: draw(histories) for name, draw in figures.items()}
        return [save_figure(figure, folder / f"{name}.png") for name, figure in drawn.items() if figure is not None]


def draw_returns(histories: Histories) -> Figure | None:
    """Plot the returns of the environment and of the learner, smoothed within each phase, over the raw ones."""
    played = [history for history in histories if len(history.episodes)]
    titles = {"return": "Return", "shaped_return": "Return with shaping"}
    return _draw(played, {title: functools.partial(_draw_returns, column) for column, title in titles.items()})


def draw_win_rates(histories: Histories) -> Figure | None:
    """Plot the shares of training games that are won and lost."""
    is_game = (pl.col("opponent") != "").any() | (pl.col("winner") != 0).any()
    played = [history for history in histories if history.episodes.select(is_game).item()]
    return _draw(played, {"Training games won, and lost (dotted)": _draw_games})


def draw_evaluations(histories: Histories) -> Figure | None:
    """Plot evaluations with 95 % intervals: mean returns, or win rates by opponent and the learner's rating."""
    evaluations = pl.concat([history.evaluations for history in histories])
    opponents = sorted(evaluations.filter(figure="win_rate")["opponent"].unique().to_list())
    panels: dict[str, Draw] = {f"Games won against {one}": functools.partial(_draw_score, one) for one in opponents}
    if "mean_return" in evaluations["figure"]:
        panels["Return without exploration"] = functools.partial(_draw_score, NOBODY, figure="mean_return")
    if LEARNER in evaluations["opponent"]:
        panels["Rating"] = functools.partial(_draw_rating, anchors_among(opponents))
    return _draw(histories, panels)


def draw_losses(histories: Histories) -> Figure | None:
    """Plot losses and other metrics of updates, one panel each."""
    names = sorted({name for history in histories for name in history.updates["figure"].unique().to_list()})
    return _draw(histories, {name.replace("_", " "): functools.partial(_draw_figure, name) for name in names})


def _draw(histories: Histories, panels: Mapping[str, Draw]) -> Figure | None:
    """Draw every run into every panel, with a legend if there are several runs."""
    if not histories or not panels:
        return None
    figure, axes = new_figure(len(panels))
    for panel, (title, draw) in zip(axes, panels.items(), strict=True):
        for number, history in enumerate(histories):
            draw(panel, history, f"C{number}")
        panel.set_title(title)
        label_transitions(panel)
        if len(histories) == 1:
            mark_phases(panel, histories[0].phases)
    if len(histories) > 1:
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _plot(panel: Axes, table: pl.DataFrame, column: str, color: str, **rest: Any) -> None:
    panel.plot(table["transitions"], table[column], color=color, **rest)


def _draw_returns(column: str, panel: Axes, history: RunHistory, color: str) -> None:
    raw = binned(history.episodes, pl.col(column).mean(), pl.col("phase").first(), least=1)
    window = max(len(raw) // _SMOOTHED, 1)
    smooth = raw.with_columns(pl.col(column).rolling_mean(window, center=True, min_samples=1).over("phase"))
    _plot(panel, raw, column, color, alpha=0.3, linewidth=0.8)
    _plot(panel, smooth, column, color, label=history.name)


def _draw_games(panel: Axes, history: RunHistory, color: str) -> None:
    winner = pl.col("winner")
    curve = binned(history.episodes, (winner > 0).mean().alias("won"), (winner < 0).mean().alias("lost"))
    _plot(panel, curve, "won", color, label=history.name)
    _plot(panel, curve, "lost", color, linestyle=":")
    panel.set_ylim(0, 1)


def _draw_score(opponent: str, panel: Axes, history: RunHistory, color: str, figure: str = "win_rate") -> None:
    table = _evaluations(history, opponent, figure, f"{figure}_low", f"{figure}_high")
    score = table[figure]
    reach = [(score - table[f"{figure}_low"]).to_list(), (table[f"{figure}_high"] - score).to_list()]
    _plot_sure(panel, table["transitions"], score, reach, color=color, label=history.name)
    if figure == "win_rate":
        panel.set_ylim(0, 1.02)


def _draw_rating(anchors: Mapping[str, float], panel: Axes, history: RunHistory, color: str) -> None:
    """Plot ratings ± 2 standard deviations, and the fixed ratings of scripted players."""
    table = _evaluations(history, LEARNER, "rating", "rating_sd")
    reach = (2 * table["rating_sd"]).to_list()
    _plot_sure(panel, table["transitions"], table["rating"], reach, color=color, label=history.name)
    for name, level in anchors.items() if not panel.texts else ():
        panel.axhline(level, color="#777777", linewidth=0.8, linestyle="--")
        panel.annotate(name, (1.0, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=7)


def _plot_sure(panel: Axes, times: pl.Series, values: pl.Series, reach: Any, **rest: Any) -> None:
    """Plot points with error bars."""
    panel.errorbar(times.to_list(), values.to_list(), reach, marker="o", markersize=3, elinewidth=0.8, **rest)


def _evaluations(history: RunHistory, opponent: str, *figures: str) -> pl.DataFrame:
    """Return one row per evaluation, with a column per metric."""
    values = [pl.col("value").filter(pl.col("figure") == name).last().alias(name) for name in figures]
    return history.evaluations.filter(opponent=opponent).group_by("transitions").agg(*values).sort("transitions")


def _draw_figure(name: str, panel: Axes, history: RunHistory, color: str) -> None:
    curve = binned(history.updates.filter(figure=name), pl.col("value").mean(), least=1)
    _plot(panel, curve, "value", color, label=history.name)


# ---------------------------------------------------------------------- a tournament


def plot_tournament(tournament: Tournament, path: str | Path) -> Path:
    """Plot ratings ± 2 standard deviations, and the matrix of scores.

    Names of players can be long paths, so they are written once; the matrix has their ranks.

    Args:
        tournament: Tournament to plot.
        path: Path of the PNG.

    Returns:
        Path of the PNG.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    with style():
        return save_figure(draw_tournament(tournament), Path(path))


def draw_tournament(tournament: Tournament) -> Figure:
    """Return the figure of `plot_tournament`, in the current style."""
    count, longest = len(tournament.names), max(map(len, tournament.names))
    width = 3.5 + 0.25 * count + _LETTER * longest / 2
    figure, (left, right) = new_figure(2, width=width, height=2.2 + 0.36 * count)
    _draw_ratings(left, tournament)
    _draw_scores(right, tournament)
    return figure


def _draw_ratings(panel: Axes, tournament: Tournament) -> None:
    for place, rating in enumerate(tournament.ratings):
        color = "#777777" if rating.is_anchor else "C0"
        reach = 0.0 if rating.is_anchor else 2 * rating.sigma
        panel.errorbar(rating.mu, place, xerr=reach, fmt="o", color=color, capsize=3, markersize=5)
    panel.set_yticks(range(len(tournament.names)), [f"{name}  {rank}" for rank, name in enumerate(tournament.names, 1)])
    panel.set_ylim(len(tournament.names) - 0.5, -0.5)
    panel.set_xlabel("rating ± 2 standard deviations; gray ones are fixed")
    panel.set_title("Ratings")


def _draw_scores(panel: Axes, tournament: Tournament) -> None:
    count = len(tournament.names)
    shares = (tournament.wins + tournament.draws / 2) / tournament.games
    np.fill_diagonal(shares, np.nan)
    panel.imshow(shares, vmin=0, vmax=1, cmap="PuOr_r", aspect="auto")
    ranks = [str(rank) for rank in range(1, count + 1)]
    panel.set_xticks(range(count), ranks)
    panel.set_yticks(range(count), ranks)
    panel.set_xlabel("opponent (a draw is half a win)")
    panel.grid(visible=False)
    panel.set_title("Score of row against column")
    for row, column in np.ndindex(count, count) if count <= _MOST_NUMBERS else ():
        if row != column:
            share = shares[row, column]
            color = "white" if abs(share - 0.5) > 0.35 else "black"
            panel.text(column, row, f"{share:.0%}", ha="center", va="center", fontsize=7, color=color)
