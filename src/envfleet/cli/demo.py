"""`envfleet demo`: in a minute from an agent that knows nothing to one that plays, and what it took."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from envfleet.cli.console import make_console, progress_bar, show_places
from envfleet.cli.playing import watch
from envfleet.cli.reports import score_table
from envfleet.cli.training import set_threads
from envfleet.errors import InvalidArgument

if TYPE_CHECKING:
    from envfleet.training.config import RunConfig
    from envfleet.training.games import Player

_GAMES = 400
_SECONDS_ALONE = 6.0


def demo(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="Configuration for hockey: a name or a JSON file.")
    ] = "quickstart",
    *,
    num_envs: Annotated[int, typer.Option("--num-envs", "-n", min=2, help="Number of games at once.")] = 1024,
    minutes: Annotated[float, typer.Option(min=0.01, help="Minutes of training.")] = 1.0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for runs.")] = Path("results/runs"),
) -> None:
    """Train a hockey player for a minute; report how it plays before and after, and what many games at once gain."""
    from envfleet.training import train
    from envfleet.training.config import read_config

    console, read = make_console(), read_config(config)
    for phase in read.curriculum.phases:
        if phase.environment.id != "hockey":
            raise InvalidArgument(
                f"{config!r} trains in {phase.environment.id!r}, but the demo plays hockey: pass a configuration for "
                f"hockey, such as quickstart, or run envfleet train {config}"
            )
    set_threads(1)
    console.print("[bold]Hockey for two, compiled.[/bold] The first time, compiling takes a minute.")
    before = _play(_untrained(read), console, "before")
    alone = _train_alone(read, console)
    console.print(f"Training for {minutes:g} min on {num_envs} games at once", style="dim")
    result = train(read, num_envs=num_envs, max_minutes=minutes, base_output_dir=out)
    player = result.best_checkpoint or result.checkpoint
    if player is None:  # no checkpoint was reached
        console.print("The run ended before its first checkpoint: give it more --minutes.")
        raise typer.Exit(1)
    after = _play(player, console, "after")
    console.print("", score_table("games against", before | after), sep="\n")
    console.print(
        f"\n{result.total_steps:,} transitions: {result.steps_per_s:,.0f} a second with {num_envs} games at once, "
        f"{alone:,.0f} with one, [bold]{result.steps_per_s / alone:.1f} ×[/bold] as many.\n",
        soft_wrap=True,
    )
    watch(str(player), against="weak", games=2, out=result.run_dir / "game.gif")
    console.print()
    places = {
        "Plots": str(result.run_dir / "plots"),
        "Watch it": f"envfleet watch {result.run_dir} --against strong --out game.mp4",
        "Play against it": f"envfleet play --against {result.run_dir}",
        "Train longer": "envfleet train ppo_kernel --num-envs 1024 --max-minutes 10",
    }
    show_places(places, console)


def _untrained(config: RunConfig) -> Any:
    """Return the agent before its first update."""
    from envfleet.training import Trainer
    from envfleet.training.plan import resolve

    with contextlib.closing(Trainer(resolve(config))) as trainer:
        return trainer.agent


def _train_alone(config: RunConfig, console: Console) -> float:
    """Return the transitions per second on one game, from a run of some seconds that leaves nothing."""
    from envfleet.training import train

    console.print(f"Training for {_SECONDS_ALONE:.0f} s on one game, to compare", style="dim")
    quick = config.training.model_copy(update={"eval_games": 1})
    quiet = config.model_copy(update={"training": quick})
    with tempfile.TemporaryDirectory(prefix="envfleet-demo-") as folder, progress_bar("one game"):
        train(quiet, max_transitions=quick.rollout_steps, base_output_dir=folder, verbose=False)  # compiles updates
        return train(quiet, max_minutes=_SECONDS_ALONE / 60, base_output_dir=folder, verbose=False).steps_per_s


def _play(player: Player, console: Console, when: str) -> dict[str, dict[str, float]]:
    """Return the scores against both scripted players, on seeds that training does not see."""
    from envfleet.training.evaluation import evaluate

    console.print(f"{_GAMES} games against each scripted player {when} training", style="dim")
    with progress_bar() as show:
        played = {
            name: evaluate(player, name, games=_GAMES, seed=1_000_000, progress=show) for name in ("weak", "strong")
        }
    return {f"{name}, {when} training": result.score.figures() for name, result in played.items()}
