"""Output of the commands that train and play: tables of games and returns, and the summary of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from envfleet.cli.console import make_table, show_places

if TYPE_CHECKING:
    from rich.table import Table

    from envfleet.training import RunResult
    from envfleet.training.evaluation import Evaluation, MeanReturn, Tournament

_REASONS = {
    "completed": "has completed its curriculum",
    "max_minutes": "has used its time",
    "max_transitions": "has made its transitions",
}
_ACTIVITIES = {
    "update": "learning",
    "env": "environment",
    "act": "acting",
    "wait": "waiting for workers",
    "evaluation": "evaluation and saving",
}


def score_table(heading: str, rows: Mapping[str, Mapping[str, float]], title: str | None = None) -> Table:
    """Make a table of games won, drawn and lost.

    Args:
        heading: Heading of the column of names.
        rows: Results of `Score.figures` by name.
        title: Above the table.
    """
    table = make_table(heading, "won", "drawn", "lost", "won, 95 % interval", "games", title=title)
    for name, figures in rows.items():
        rates = (f"{figures[rate]:.1%}" for rate in ("win_rate", "draw_rate", "loss_rate"))
        interval = f"{figures['win_rate_low']:.1%} to {figures['win_rate_high']:.1%}"
        table.add_row(escape(name), *rates, interval, f"{figures['games']:,.0f}")
    return table


def show_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Print an evaluation as a table: all games, then each side."""
    mode = f", {evaluation.mode}" if evaluation.mode else ""
    title = f"{escape(evaluation.player)} against {escape(evaluation.opponent)}{mode}"
    scores = {"all": evaluation.score, **evaluation.sides}
    console.print(score_table("side", {name: score.figures() for name, score in scores.items()}, title))
    console.print(
        f"Mean return {evaluation.mean_return:.2f}, mean length {evaluation.mean_length:.0f} steps, "
        f"seed {evaluation.seed}."
    )


def show_returns(returns: Mapping[str, MeanReturn], console: Console) -> None:
    """Print mean returns of players in an environment for one as a table, best first."""
    first = next(iter(returns.values()))
    title = f"{escape(first.env)}, {first.episodes} episodes each, seed {first.seed}"
    table = make_table("player", "mean return", "95 % interval", "worst", "best", "mean length", title=title)
    for player, result in sorted(returns.items(), key=lambda item: -item[1].mean):
        interval = f"{result.interval[0]:.2f} to {result.interval[1]:.2f}"
        mean, low, high = (f"{value:.2f}" for value in (result.mean, result.low, result.high))
        numbers = (mean, interval, low, high, f"{result.mean_length:.0f}")
        table.add_row(escape(player), *numbers)
    console.print(table)


def show_tournament(tournament: Tournament, console: Console) -> None:
    """Print a tournament as a table, best first."""
    title = f"{len(tournament.ratings)} players, {tournament.games} games a pair"
    table = make_table("player", "rating", "± 2 sd", "games", "won", "drawn", "lost", "score", title=title)
    for row, rating in enumerate(tournament.ratings):
        score = tournament.score(row)
        reach = "fixed" if rating.is_anchor else f"{2 * rating.sigma:.1f}"
        counts = (f"{number:,}" for number in (score.games, score.wins, score.draws, score.losses))
        share = f"{score.win_rate + score.draw_rate / 2:.1%}"
        table.add_row(escape(rating.name), f"{rating.mu:.1f}", reach, *counts, share)
    console.print(table)


def show_result(result: RunResult, console: Console) -> None:
    """Print the result of a run: one line if it was interrupted, otherwise metrics and paths."""
    command = f"envfleet train --resume {result.run_dir}"
    if result.reason == "interrupted":
        text = f"Interrupted after {result.total_steps:,} transitions; the run is saved. Continue: {command}"
        console.print(text, markup=False, soft_wrap=True)
        return
    lines = [
        f"[bold]{escape(result.run_name)}[/bold] {_REASONS[result.reason]}",
        f"{result.total_steps:,} transitions, {result.total_episodes:,} episodes, {result.total_updates:,} updates; "
        f"{result.steps_per_s:,.0f} transitions/s"
        + (f"; return of the last episodes {result.mean_reward:.2f}" if result.total_episodes else ""),
        f"Time: {_describe_seconds(result.seconds)}",
    ]
    console.print("\n".join(lines))
    if result.evaluation:
        console.print("", _evaluation_table(result.evaluation), sep="\n")
    if result.rating is not None:
        from envfleet.training.evaluation import anchors_among

        fixed = ", ".join(f"{name} has {mu:g}" for name, mu in anchors_among(result.evaluation).items())
        console.print(f"Rating {result.rating:.1f} ({fixed})")
    console.print()
    places = {
        "Plots": result.run_dir / "plots",
        "Best agent": result.best_checkpoint,
        "Last agent": result.checkpoint,
        "TensorBoard": f"tensorboard --logdir {result.run_dir / 'tensorboard'}",
        "Continue": None if result.reason == "completed" else command,
    }
    show_places({name: str(place) for name, place in places.items() if place is not None}, console)


def _describe_seconds(seconds: Mapping[str, float]) -> str:
    total = sum(seconds.values()) or 1.0
    shares = sorted(((value / total, name) for name, value in seconds.items()), reverse=True)
    return ", ".join(f"{_ACTIVITIES[name]} {share:.0%}" for share, name in shares if share >= 0.005) or "none"


def _evaluation_table(evaluation: Mapping[str, Mapping[str, float]]) -> Table:
    if all("win_rate" in figures for figures in evaluation.values()):
        return score_table("last evaluation against", evaluation)
    table = make_table("last evaluation", "")
    for figures in evaluation.values():
        for name, value in figures.items():
            table.add_row(name.replace("_", " "), f"{value:,.6g}")
    return table
