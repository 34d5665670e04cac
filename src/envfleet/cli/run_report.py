"""Summary at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from envfleet.cli.console import show_places

if TYPE_CHECKING:
    from envfleet.training import RunResult

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


def show_result(result: RunResult, console: Console) -> None:
    """Print how a run ended: one line if somebody ended it, else how good it is and where its files are."""
    go_on = f"envfleet train --resume {escape(str(result.run_dir))}"
    if result.reason == "interrupted":
        console.print(
            f"Interrupted after {result.total_steps:,} transitions; all is saved. Go on: {go_on}", soft_wrap=True
        )
        return
    console.print(f"[bold]{escape(result.run_name)}[/bold] {_REASONS[result.reason]}", soft_wrap=True)
    console.print(
        f"{result.total_steps:,} transitions, {result.total_episodes:,} episodes, {result.total_updates:,} updates; "
        f"{result.steps_per_s:,.0f} transitions/s"
        + (f"; return of the last episodes {result.mean_reward:.2f}" if result.total_episodes else ""),
        soft_wrap=True,
    )
    console.print(f"Time: {_describe_seconds(result.seconds)}", soft_wrap=True)
    if result.evaluation:
        console.print()
        console.print(_evaluation_table(result.evaluation))
    if result.rating is not None:
        from envfleet.training.opponents.standing import anchors_among

        fixed = ", ".join(f"{name} has {mu:g}" for name, mu in anchors_among(result.evaluation).items())
        console.print(f"Rating {result.rating:.1f} ({fixed})")
    console.print()
    places = {"Plots": str(result.run_dir / "plots")}
    if result.best_checkpoint is not None:
        places["Best agent"] = str(result.best_checkpoint)
    if result.checkpoint is not None:
        places["Last agent"] = str(result.checkpoint)
    places["TensorBoard"] = f"tensorboard --logdir {result.run_dir / 'tensorboard'}"
    if result.reason != "completed":
        places["Go on"] = f"envfleet train --resume {result.run_dir}"
    show_places(places, console)


def _describe_seconds(seconds: Mapping[str, float]) -> str:
    total = sum(seconds.values())
    if not total:
        return "none"
    shares = sorted(((value / total, name) for name, value in seconds.items()), reverse=True)
    return ", ".join(f"{_ACTIVITIES[name]} {share:.0%}" for share, name in shares if share >= 0.005)


def _evaluation_table(evaluation: Mapping[str, Mapping[str, float]]) -> Table:
    table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
    if all("win_rate" in figures for figures in evaluation.values()):
        for heading in ("last evaluation against", "won", "drawn", "lost", "won, 95 % interval", "games"):
            table.add_column(heading, justify="left" if not table.columns else "right")
        for opponent, figures in evaluation.items():
            low, high = figures["win_rate_low"], figures["win_rate_high"]
            rates = (f"{figures[name]:.1%}" for name in ("win_rate", "draw_rate", "loss_rate"))
            table.add_row(escape(opponent), *rates, f"{low:.1%} to {high:.1%}", f"{figures['games']:,.0f}")
        return table
    table.add_column("last evaluation")
    table.add_column("", justify="right")
    for figures in evaluation.values():
        for name, value in figures.items():
            table.add_row(name.replace("_", " "), f"{value:,.6g}")
    return table
