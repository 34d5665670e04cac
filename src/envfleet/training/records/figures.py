"""What there is to see of a run, or of several next to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import polars as pl

from envfleet.training.opponents.standing import LEARNER, anchors_among
from envfleet.training.records.drawing import (
    COLOURS,
    DRAW,
    LOSS,
    WIN,
    add_below,
    binned,
    draw_band,
    label_transitions,
    mark_phases,
    new_figure,
)
from envfleet.training.records.history import RunHistory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Histories = Sequence[RunHistory]
_SMOOTHED = 12  # a point is the mean of this part of the whole curve
_SECONDS = {
    "act_s": "acting",
    "env_s": "environment",
    "wait_s": "waiting",
    "update_s": "learning",
    "evaluation_s": "evaluation",
}


def draw_returns(histories: Histories) -> Figure | None:
    """Draw the true and the learner's returns, smoothed within each phase, with the raw ones pale behind."""
    if all(history.episodes.is_empty() for history in histories):
        return None
    figure, panels = new_figure(1, 2, 10, 3.6)
    for panel, column, title in zip(
        panels, ("return", "shaped_return"), ("Return", "Return that is learned from"), strict=True
    ):
        for history, colour in zip(histories, _colours(histories), strict=True):
            raw = binned(history.episodes, pl.col(column).mean(), pl.col("phase").first(), least=1)
            window = max(len(raw) // _SMOOTHED, 1)
            mean = pl.col(column).rolling_mean(window, center=True, min_samples=1).over("phase")
            panel.plot(raw["transitions"], raw[column], color=colour, alpha=0.3, linewidth=0.8)
            panel.plot(raw["transitions"], raw.select(mean)[column], color=colour, label=history.name)
        panel.set_title(title)
        _finish(panel, histories)
    _name_runs(figure, histories)
    return figure


def draw_win_rates(histories: Histories) -> Figure | None:
    """Draw how training games end, over time and by phase: all ends of one run, or the wins of several."""
    played = [history for history in histories if _has_games(history)]
    if not played:
        return None
    figure, (over_time, by_phase) = new_figure(1, 2, 10, 3.6)
    won, lost = (pl.col("winner") > 0).mean().alias("won"), (pl.col("winner") < 0).mean().alias("lost")
    names = list(dict.fromkeys(name for history in played for name, _ in history.phases))
    for number, (history, colour) in enumerate(zip(played, _colours(played), strict=True)):
        curve = binned(history.episodes, won, lost)
        phases = history.episodes.group_by("phase_name", maintain_order=True).agg(won, lost)
        if len(played) > 1:
            over_time.plot(curve["transitions"], curve["won"], color=colour, label=history.name)
            width = 0.8 / len(played)
            places = [names.index(name) - 0.4 + (number + 0.5) * width for name in phases["phase_name"]]
            by_phase.bar(places, phases["won"], width=width, color=colour)
        else:
            over_time.stackplot(curve["transitions"], *_shares(curve), colors=(WIN, DRAW, LOSS), alpha=0.85)
            bottoms = pl.Series([0.0] * len(phases))
            for share, shade, label in zip(_shares(phases), (WIN, DRAW, LOSS), ("won", "drawn", "lost"), strict=True):
                by_phase.bar(range(len(phases)), share, bottom=bottoms, width=0.6, color=shade, alpha=0.85, label=label)
                bottoms = bottoms + share
    by_phase.set_xticks(range(len(names)), names)
    for panel in (over_time, by_phase):
        panel.set_ylim(0, 1)
    by_phase.grid(visible=False)
    by_phase.set_title("By phase")
    over_time.set_title("Training games won" if len(played) > 1 else "How training games end")
    _finish(over_time, played)
    if len(played) == 1:
        by_phase.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3, fontsize=8)
    else:
        _name_runs(figure, played)
    return figure


def draw_evaluations(histories: Histories) -> Figure | None:
    """Draw win rates of evaluations with their 95 % intervals, a panel per opponent, and ratings of the learner."""
    rates = [_win_rates(history) for history in histories]
    opponents = sorted({name for table in rates for name in table["opponent"].unique().to_list()})
    if not opponents:
        return None
    ratings = [_ratings(history) for history in histories]
    count = len(opponents) + any(not table.is_empty() for table in ratings)
    figure, panels = new_figure(1, count, 4.6 * count + 0.6, 3.6)
    for panel, opponent in zip(panels, opponents, strict=False):
        for history, table, colour in zip(histories, rates, _colours(histories), strict=True):
            rows = table.filter(pl.col("opponent") == opponent).sort("transitions")
            panel.plot(
                rows["transitions"], rows["win_rate"], color=colour, marker="o", markersize=3, label=history.name
            )
            if {"win_rate_low", "win_rate_high"} <= set(rows.columns):
                draw_band(panel, rows["transitions"], rows["win_rate_low"], rows["win_rate_high"], colour)
        panel.set_ylim(0, 1.02)
        panel.set_title(f"Games won against {opponent}")
        _finish(panel, histories)
    if count > len(opponents):
        _draw_ratings(panels[-1], histories, ratings, anchors_among(opponents))
    _name_runs(figure, histories)
    return figure


def _draw_ratings(
    panel: Axes, histories: Histories, ratings: Sequence[pl.DataFrame], anchors: Mapping[str, float]
) -> None:
    """Ratings with two standard deviations to either side, and where the scripted players stand."""
    for history, table, colour in zip(histories, ratings, _colours(histories), strict=True):
        times, rating, reach = table["transitions"], table["rating"], 2 * table["rating_sd"]
        panel.plot(times, rating, color=colour, marker="o", markersize=3, label=history.name)
        draw_band(panel, times, rating - reach, rating + reach, colour)
    for name, level in anchors.items():
        panel.axhline(level, color="#777777", linewidth=0.8, linestyle="--")
        panel.annotate(name, (1.0, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=7)
    panel.set_title("Rating")
    _finish(panel, histories)


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
            curve = binned(frame, pl.col("value").mean(), least=1)
            panel.plot(curve["transitions"], curve["value"], color=colour, label=history.name)
        panel.set_title(name.replace("_", " "))
        _finish(panel, histories)
    for panel in panels[len(names) :]:
        panel.set_axis_off()
    _name_runs(figure, histories)
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
    _draw_shares(shares, timed)
    _name_runs(figure, timed)
    return figure


def _draw_shares(panel: Axes, histories: Histories) -> None:
    """Draw a bar per run, of what its time went to."""
    last = [history.speed.row(-1, named=True) for history in histories]
    totals = [sum(row[column] for column in _SECONDS) or 1.0 for row in last]
    lefts = [0.0] * len(histories)
    for (column, label), colour in zip(_SECONDS.items(), COLOURS, strict=False):
        parts = [row[column] / total for row, total in zip(last, totals, strict=True)]
        panel.barh(range(len(histories)), parts, left=lefts, color=colour, label=label, height=0.5)
        lefts = [left + part for left, part in zip(lefts, parts, strict=True)]
    for number, history in enumerate(histories):
        panel.text(0, number - 0.28, history.name, fontsize=7, va="bottom", color="#555555")
    panel.set_title("Where time went")
    panel.set_xlim(0, 1)
    panel.set_ylim(len(histories) - 0.4, -0.6)
    panel.grid(visible=False)
    panel.set_yticks([])
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=5, fontsize=7, handlelength=1, columnspacing=1)


def _colours(histories: Histories) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(len(histories))]


def _shares(frame: pl.DataFrame) -> tuple[pl.Series, pl.Series, pl.Series]:
    """Won, drawn and lost, of columns `won` and `lost`."""
    return frame["won"], 1 - frame["won"] - frame["lost"], frame["lost"]


def _has_games(history: RunHistory) -> bool:
    return bool(history.episodes.select((pl.col("opponent") != "").any() | (pl.col("winner") != 0).any()).item())


def _win_rates(history: RunHistory) -> pl.DataFrame:
    """Return a row per evaluation and opponent, with a column per figure; none without `win_rate`."""
    table = history.evaluations.filter(pl.col("figure").str.starts_with("win_rate"))
    return table.pivot("figure", index=["transitions", "opponent"], values="value", aggregate_function="last")


def _ratings(history: RunHistory) -> pl.DataFrame:
    """Return a row per evaluation that rated the learner: `transitions`, `rating`, `rating_sd`."""
    table = history.evaluations.filter(opponent=LEARNER).pivot(
        "figure", index="transitions", values="value", aggregate_function="last"
    )
    whole = {"transitions": pl.Int64, "rating": pl.Float64, "rating_sd": pl.Float64}
    return table.sort("transitions") if len(table) else pl.DataFrame(schema=whole)


def _finish(panel: Axes, histories: Histories) -> None:
    label_transitions(panel)
    if len(histories) == 1:
        mark_phases(panel, histories[0].phases)


def _name_runs(figure: Figure, histories: Histories) -> None:
    """Say which colour is which run, if there are several."""
    if len(histories) > 1:
        handles, labels = figure.axes[0].get_legend_handles_labels()
        add_below(figure, 0.1 + 0.16 * -(-len(labels) // 2))
        figure.legend(handles, labels, loc="lower center", fontsize=7, ncols=2)
