"""Figures of a run, or of several next to each other: a panel has a curve per run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from envfleet.errors import InvalidArgument
from envfleet.training.evaluation.ratings import anchors_among
from envfleet.training.events import LEARNER
from envfleet.training.records import drawing
from envfleet.training.records.tables import RunHistory, read_history

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Histories = Sequence[RunHistory]
Draw = Callable[["Axes", RunHistory, str], None]
"""Draws a run into a panel, in its colour."""
_SMOOTHED = 12  # a point is the mean of this part of the whole curve


def plot_runs(runs: Sequence[str | Path], out: str | Path | None = None) -> list[Path]:
    """Draw the figures of runs; several runs are drawn into the same ones.

    Args:
        runs: Folders of runs.
        out: Folder for the figures; `None` for `plots` in that of the only run.

    Returns:
        The files: returns, win rates, evaluations, losses; those that there is something to draw for.

    Raises:
        InvalidArgument: There is no run, one is none, or there are several and no `out`.
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
    with drawing.style():
        drawn = {name: draw(histories) for name, draw in figures.items()}
        return [
            drawing.save_figure(figure, folder / f"{name}.png") for name, figure in drawn.items() if figure is not None
        ]


def draw_returns(histories: Histories) -> Figure | None:
    """Draw the true and the learner's returns, smoothed within each phase, with the raw ones pale behind."""
    played = [history for history in histories if len(history.episodes)]
    titles = {"return": "Return", "shaped_return": "Return that is learned from"}
    return _draw(played, {title: functools.partial(_draw_returns, column) for column, title in titles.items()})


def draw_win_rates(histories: Histories) -> Figure | None:
    """Draw how many training games are won and lost."""
    is_game = (pl.col("opponent") != "").any() | (pl.col("winner") != 0).any()
    played = [history for history in histories if history.episodes.select(is_game).item()]
    return _draw(played, {"Training games won, and lost (dotted)": _draw_games})


def draw_evaluations(histories: Histories) -> Figure | None:
    """Draw win rates of evaluations with their 95 % intervals, a panel per opponent, and ratings of the learner."""
    evaluations = pl.concat([history.evaluations for history in histories])
    opponents = sorted(evaluations.filter(figure="win_rate")["opponent"].unique().to_list())
    panels: dict[str, Draw] = {
        f"Games won against {name}": functools.partial(_draw_win_rate, name) for name in opponents
    }
    if LEARNER in evaluations["opponent"]:
        panels["Rating"] = functools.partial(_draw_rating, anchors_among(opponents))
    return _draw(histories, panels)


def draw_losses(histories: Histories) -> Figure | None:
    """Draw losses and other figures of updates, a panel for each."""
    names = sorted({name for history in histories for name in history.updates["figure"].unique().to_list()})
    return _draw(histories, {name.replace("_", " "): functools.partial(_draw_figure, name) for name in names})


def _draw(histories: Histories, panels: Mapping[str, Draw]) -> Figure | None:
    """Draw every run into every panel, and say which colour is which run if there are several."""
    if not histories or not panels:
        return None
    figure, axes = drawing.new_figure(len(panels))
    for panel, (title, draw) in zip(axes, panels.items(), strict=True):
        for number, history in enumerate(histories):
            draw(panel, history, drawing.COLOURS[number % len(drawing.COLOURS)])
        panel.set_title(title)
        drawing.label_transitions(panel)
        if len(histories) == 1:
            drawing.mark_phases(panel, histories[0].phases)
    if len(histories) > 1:
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _plot(panel: Axes, table: pl.DataFrame, column: str, colour: str, **rest: Any) -> None:
    panel.plot(table["transitions"], table[column], color=colour, **rest)


def _draw_returns(column: str, panel: Axes, history: RunHistory, colour: str) -> None:
    raw = drawing.binned(history.episodes, pl.col(column).mean(), pl.col("phase").first(), least=1)
    window = max(len(raw) // _SMOOTHED, 1)
    smooth = raw.with_columns(pl.col(column).rolling_mean(window, center=True, min_samples=1).over("phase"))
    _plot(panel, raw, column, colour, alpha=0.3, linewidth=0.8)
    _plot(panel, smooth, column, colour, label=history.name)


def _draw_games(panel: Axes, history: RunHistory, colour: str) -> None:
    winner = pl.col("winner")
    curve = drawing.binned(history.episodes, (winner > 0).mean().alias("won"), (winner < 0).mean().alias("lost"))
    _plot(panel, curve, "won", colour, label=history.name)
    _plot(panel, curve, "lost", colour, linestyle=":")
    panel.set_ylim(0, 1)


def _draw_win_rate(opponent: str, panel: Axes, history: RunHistory, colour: str) -> None:
    table = _evaluations(history, opponent, "win_rate", "win_rate_low", "win_rate_high")
    rate = table["win_rate"]
    reach = [(rate - table["win_rate_low"]).to_list(), (table["win_rate_high"] - rate).to_list()]
    _plot_sure(panel, table["transitions"], rate, reach, color=colour, label=history.name)
    panel.set_ylim(0, 1.02)


def _draw_rating(anchors: Mapping[str, float], panel: Axes, history: RunHistory, colour: str) -> None:
    """Draw ratings with two standard deviations to either side, and where the scripted players stand."""
    table = _evaluations(history, LEARNER, "rating", "rating_sd")
    reach = (2 * table["rating_sd"]).to_list()
    _plot_sure(panel, table["transitions"], table["rating"], reach, color=colour, label=history.name)
    for name, level in anchors.items() if not panel.texts else ():
        panel.axhline(level, color="#777777", linewidth=0.8, linestyle="--")
        panel.annotate(name, (1.0, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=7)


def _plot_sure(panel: Axes, times: pl.Series, values: pl.Series, reach: Any, **rest: Any) -> None:
    """Plot points with bars that show how sure they are."""
    panel.errorbar(times.to_list(), values.to_list(), reach, marker="o", markersize=3, elinewidth=0.8, **rest)


def _evaluations(history: RunHistory, opponent: str, *figures: str) -> pl.DataFrame:
    """Return a row per evaluation, with a column per figure."""
    values = [pl.col("value").filter(pl.col("figure") == name).last().alias(name) for name in figures]
    return history.evaluations.filter(opponent=opponent).group_by("transitions").agg(*values).sort("transitions")


def _draw_figure(name: str, panel: Axes, history: RunHistory, colour: str) -> None:
    curve = drawing.binned(history.updates.filter(figure=name), pl.col("value").mean(), least=1)
    _plot(panel, curve, "value", colour, label=history.name)
