"""The figures of a run, or of several next to each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from envfleet.errors import InvalidArgument, MissingDependency
from envfleet.training.records.drawing import (
    COLOURS,
    DRAW,
    LOSS,
    WIN,
    binned,
    label_transitions,
    mark_phases,
    new_figure,
    save_figure,
)
from envfleet.training.records.history import RunHistory, read_history

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Histories = Sequence[RunHistory]
_SECONDS = {
    "act_s": "acting",
    "env_s": "environment",
    "wait_s": "waiting",
    "update_s": "learning",
    "evaluation_s": "evaluation",
}


def plot_runs(runs: Sequence[str | Path], out: str | Path | None = None) -> list[Path]:
    """Draw the figures of runs; several runs are drawn into the same ones.

    Args:
        runs: Folders of runs.
        out: Folder for the figures; `None` for `plots` in that of the only run.

    Returns:
        The files: returns, win rates, evaluations, losses, speed; those that there is something to draw for.

    Raises:
        InvalidArgument: There is no run, one is none, or there are several and no `out`.
    """
    if not runs:
        raise InvalidArgument("no run to plot: pass one or more folders of runs")
    if out is None and len(runs) > 1:
        raise InvalidArgument(f"{len(runs)} runs to compare, but no folder for the figures: pass one as `out` (--out)")
    try:
        import matplotlib as mpl  # noqa: F401  # so that what is missing is said once, and how to get it
    except ImportError as error:
        raise MissingDependency("plots need matplotlib: pip install 'envfleet[train]'") from error
    histories = [read_history(run) for run in runs]
    folder = Path(runs[0]) / "plots" if out is None else Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Callable[[Histories], Figure | None]] = {
        "returns": draw_returns,
        "win_rate": draw_win_rates,
        "evaluations": draw_evaluations,
        "losses": draw_losses,
        "speed": draw_speed,
    }
    drawn = {name: draw(histories) for name, draw in figures.items()}
    return [save_figure(figure, folder / f"{name}.png") for name, figure in drawn.items() if figure is not None]


def draw_returns(histories: Histories) -> Figure | None:
    """Draw means of the true and of the learner's returns, with the band that holds 80 % of them."""
    if all(history.episodes.is_empty() for history in histories):
        return None
    figure, panels = new_figure(1, 2, 10, 3.6)
    for panel, column, title in zip(
        panels, ("return", "shaped_return"), ("Return", "Return that is learned from"), strict=True
    ):
        for history, colour in zip(histories, _colours(histories), strict=True):
            value = pl.col(column)
            curve = binned(
                history.episodes,
                value.mean().alias("mean"), value.quantile(0.1).alias("low"), value.quantile(0.9).alias("high"),
            )  # fmt: skip
            panel.fill_between(curve["transitions"], curve["low"], curve["high"], color=colour, alpha=0.15, linewidth=0)
            panel.plot(curve["transitions"], curve["mean"], color=colour, label=history.name)
        panel.set_title(title)
        _finish(panel, histories)
    return figure


def draw_win_rates(histories: Histories) -> Figure | None:
    """Draw how training games end: wins, draws and losses of one run, or the wins of several."""
    played = [history for history in histories if _has_games(history)]
    if not played:
        return None
    figure, (panel,) = new_figure(1, 1, 7, 3.8)
    for history, colour in zip(played, _colours(played), strict=True):
        winner = pl.col("winner")
        curve = binned(history.episodes, (winner > 0).mean().alias("won"), (winner < 0).mean().alias("lost"))
        if len(played) > 1:
            panel.plot(curve["transitions"], curve["won"], color=colour, label=history.name)
            continue
        shares = (curve["won"], 1 - curve["won"] - curve["lost"], curve["lost"])
        panel.stackplot(
            curve["transitions"], *shares, colors=(WIN, DRAW, LOSS), labels=("won", "drawn", "lost"), alpha=0.85
        )
    panel.set_ylim(0, 1)
    panel.set_title("Training games won" if len(played) > 1 else "How training games end")
    _finish(panel, played, always_legend=True)
    return figure


def draw_evaluations(histories: Histories) -> Figure | None:
    """Draw win rates of evaluations with their 95 % intervals, a panel per opponent."""
    rates = [_win_rates(history) for history in histories]
    opponents = sorted({name for table in rates for name in table["opponent"].unique().to_list()})
    if not opponents:
        return None
    figure, panels = new_figure(1, len(opponents), 4.6 * len(opponents) + 0.6, 3.6)
    for panel, opponent in zip(panels, opponents, strict=True):
        for history, table, colour in zip(histories, rates, _colours(histories), strict=True):
            rows = table.filter(pl.col("opponent") == opponent).sort("transitions")
            panel.plot(
                rows["transitions"], rows["win_rate"], color=colour, marker="o", markersize=3, label=history.name
            )
            if {"win_rate_low", "win_rate_high"} <= set(rows.columns):
                panel.fill_between(
                    rows["transitions"],
                    rows["win_rate_low"],
                    rows["win_rate_high"],
                    color=colour,
                    alpha=0.2,
                    linewidth=0,
                )
        panel.set_ylim(0, 1.02)
        panel.set_title(f"Games won against {opponent}")
        _finish(panel, histories)
    return figure


def draw_losses(histories: Histories) -> Figure | None:
    """Draw losses and other figures of updates, a panel for each."""
    names = sorted({name for history in histories for name in history.updates["figure"].unique().to_list()})
    if not names:
        return None
    columns = min(len(names), 3)
    rows = -(-len(names) // columns)
    figure, panels = new_figure(rows, columns, 3.8 * columns + 0.6, 2.6 * rows + 0.3)
    for panel, name in zip(panels, names, strict=False):
        for history, colour in zip(histories, _colours(histories), strict=True):
            frame = history.updates.filter(pl.col("figure") == name)
            curve = binned(frame, pl.col("value").mean())
            panel.plot(curve["transitions"], curve["value"], color=colour, label=history.name)
        panel.set_title(name.replace("_", " "))
        _finish(panel, histories)
    for panel in panels[len(names) :]:
        panel.set_axis_off()
    return figure


def draw_speed(histories: Histories) -> Figure | None:
    """Draw steps per second, and where the seconds went."""
    timed = [history for history in histories if not history.speed.is_empty()]
    if not timed:
        return None
    figure, (speed, shares) = new_figure(1, 2, 10, 3.4)
    for history, colour in zip(timed, _colours(timed), strict=True):
        speed.plot(history.speed["transitions"], history.speed["steps_per_s"], color=colour, label=history.name)
    speed.set_ylim(bottom=0)
    speed.set_title("Transitions per second")
    _finish(speed, timed)
    bottoms = [0.0] * len(timed)
    last = [history.speed.row(-1, named=True) for history in timed]
    totals = [sum(row[column] for column in _SECONDS) or 1.0 for row in last]
    for (column, label), colour in zip(_SECONDS.items(), COLOURS, strict=False):
        parts = [row[column] / total for row, total in zip(last, totals, strict=True)]
        shares.barh([history.name for history in timed], parts, left=bottoms, color=colour, label=label, height=0.5)
        bottoms = [bottom + part for bottom, part in zip(bottoms, parts, strict=True)]
    shares.set_title("Where time went")
    shares.set_xlim(0, 1)
    shares.set_ylim(len(timed) - 0.4, -0.6)
    shares.grid(visible=False)
    shares.tick_params(axis="y", labelsize=6)
    shares.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=5, fontsize=7)
    return figure


def _colours(histories: Histories) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(len(histories))]


def _has_games(history: RunHistory) -> bool:
    return bool(history.episodes.select((pl.col("opponent") != "").any() | (pl.col("winner") != 0).any()).item())


def _win_rates(history: RunHistory) -> pl.DataFrame:
    """A row per evaluation and opponent, with a column per figure; none without `win_rate`."""
    table = history.evaluations.filter(pl.col("figure").str.starts_with("win_rate"))
    return table.pivot("figure", index=["transitions", "opponent"], values="value", aggregate_function="last")


def _finish(panel: Axes, histories: Histories, *, always_legend: bool = False) -> None:
    label_transitions(panel)
    if len(histories) == 1:
        mark_phases(panel, histories[0].phases)
    if always_legend or len(histories) > 1:
        panel.legend(fontsize=7, loc="best")
