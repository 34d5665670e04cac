"""Evaluations and tournaments as a person reads them, and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from envfleet.training.evaluation.evaluation import Evaluation, MeanReturn, Score
from envfleet.training.evaluation.tournament import Tournament


def show_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Print an evaluation as a table: all games, then each side."""
    one, two = escape(evaluation.player), escape(evaluation.opponent)
    mode = f", {evaluation.mode}" if evaluation.mode else ""
    table = Table(title=f"{one} against {two}{mode}", title_justify="left", show_edge=False)
    table.add_column("side")
    for name in ("games", "won", "drawn", "lost"):
        table.add_column(name, justify="right")
    table.add_column("won, 95 % interval", justify="right")
    rows = {"all": evaluation.score, **evaluation.sides}
    for name, score in rows.items():
        low, high = score.win_interval
        shares = (f"{share:.1%}" for share in (score.win_rate, score.draw_rate, score.loss_rate))
        table.add_row(name, f"{score.games:,}", *shares, f"{low:.1%} to {high:.1%}")
    console.print(table)
    console.print(
        f"Mean return {evaluation.mean_return:.2f}, mean length {evaluation.mean_length:.0f} steps, "
        f"seed {evaluation.seed}."
    )


def show_returns(found: Mapping[str, MeanReturn], console: Console) -> None:
    """Print mean returns of players in an environment for one as a table, best first."""
    first = next(iter(found.values()))
    title = f"{escape(first.env)}, {first.episodes} episodes each, seed {first.seed}"
    table = Table(title=title, title_justify="left", show_edge=False)
    table.add_column("player")
    for name in ("mean return", "95 % interval", "worst", "best", "mean length"):
        table.add_column(name, justify="right")
    for player, one in sorted(found.items(), key=lambda item: -item[1].mean):
        interval = f"{one.interval[0]:.2f} to {one.interval[1]:.2f}"
        numbers = (f"{number:.2f}" for number in (one.low, one.high))
        table.add_row(escape(player), f"{one.mean:.2f}", interval, *numbers, f"{one.mean_length:.0f}")
    console.print(table)


def show_tournament(tournament: Tournament, console: Console) -> None:
    """Print a tournament as a table, best first."""
    count = len(tournament.ratings)
    table = Table(title=f"{count} players, {tournament.games} games a pair", title_justify="left", show_edge=False)
    table.add_column("player")
    for name in ("rating", "± 2 sd", "games", "won", "drawn", "lost", "score"):
        table.add_column(name, justify="right")
    for row, rating in enumerate(tournament.ratings):
        score = tournament.score(row)
        reach = "fixed" if rating.is_anchor else f"{2 * rating.sigma:.1f}"
        total = (score.wins + score.draws / 2) / score.games
        counts = (f"{number:,}" for number in (score.games, score.wins, score.draws, score.losses))
        table.add_row(escape(rating.name), f"{rating.mu:.1f}", reach, *counts, f"{total:.1%}")
    console.print(table)


def evaluation_json(evaluation: Evaluation) -> dict[str, Any]:
    """Return all of an evaluation, for `json.dumps`."""
    return {
        "player": evaluation.player,
        "opponent": evaluation.opponent,
        "mode": evaluation.mode,
        "seed": evaluation.seed,
        "mean_return": evaluation.mean_return,
        "mean_length": evaluation.mean_length,
        **_score_json(evaluation.score),
        "sides": {side: _score_json(score) for side, score in evaluation.sides.items()},
    }


def tournament_json(tournament: Tournament) -> dict[str, Any]:
    """Return all of a tournament, for `json.dumps`."""
    return {
        "games": tournament.games,
        "ratings": [dataclasses.asdict(rating) for rating in tournament.ratings],
        "wins": tournament.wins.tolist(),
        "draws": tournament.draws.tolist(),
    }


def _score_json(score: Score) -> dict[str, Any]:
    return {
        **dataclasses.asdict(score),
        "win_rate": score.win_rate,
        "win_interval": score.win_interval,
        "draw_rate": score.draw_rate,
        "draw_interval": score.draw_interval,
        "loss_rate": score.loss_rate,
        "loss_interval": score.loss_interval,
    }
