"""Tables of evaluations and tournaments."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from envfleet.training.evaluation.evaluation import Evaluation, MeanReturn
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
