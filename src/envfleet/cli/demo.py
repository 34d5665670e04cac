"""`envfleet demo`: in a minute from an agent that knows nothing to one that plays, and what it took."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from envfleet.cli.console import make_console, readable_errors, show_places
from envfleet.cli.training import set_threads

if TYPE_CHECKING:
    from envfleet.training import RunResult
    from envfleet.training.config import RunConfig
    from envfleet.training.evaluation import Score
    from envfleet.training.games import Player

_GAMES = 400
_SECONDS_ALONE = 6.0
_SCRIPTED = ("weak", "strong")


def demo(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="Configuration: a name or a JSON file, as in train.")
    ] = "quickstart",
    *,
    num_envs: Annotated[int, typer.Option("--num-envs", "-n", min=2, help="Number of games at once.")] = 1024,
    minutes: Annotated[float, typer.Option(min=0.01, help="Minutes of training.")] = 1.0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for runs.")] = Path("results/runs"),
) -> None:
    """Train a hockey player for a minute; report how it plays before and after, and what many games at once gain."""
    with readable_errors():
        from envfleet.training import train
        from envfleet.training.config import read_config

        set_threads(1)
        console, read = make_console(), read_config(config)
        console.print("[bold]Hockey for two, compiled.[/bold] The first time, compiling takes a minute.")
        before = _play(_untrained(read), console, "Before training")
        alone = _train_alone(read, console)
        console.print(f"Training for {minutes:g} min on {num_envs} games at once", style="dim")
        result = train(read, num_envs=num_envs, max_minutes=minutes, base_output_dir=out)
        player = result.best_checkpoint or result.checkpoint
        if player is None:  # no checkpoint was reached
            console.print("The run ended before its first checkpoint: give it more --minutes.")
            raise typer.Exit(1)
        after = _play(player, console, "After training")
        film = result.run_dir / "game.gif"
        _film(player, film)
        _report(before, after, (alone, result, num_envs), console)
        _show_places(result, film, console)


def _untrained(config: RunConfig) -> Any:
    """Return the agent as it is before its first update."""
    from envfleet.training import RunOptions, Trainer

    trainer = Trainer(config, RunOptions())
    trainer.close()
    return trainer.agent


def _train_alone(config: RunConfig, console: Console) -> RunResult:
    """Train on one game for some seconds; what it leaves is thrown away."""
    from envfleet.training import train

    console.print(f"Training for {_SECONDS_ALONE:.0f} s on one game, to compare", style="dim")
    quick = config.training.model_copy(update={"eval_games": 1})
    quiet = config.model_copy(update={"training": quick})
    with tempfile.TemporaryDirectory(prefix="envfleet-demo-") as folder:
        train(quiet, max_transitions=quick.rollout_steps, base_output_dir=folder, verbose=False)  # compiles updates
        return train(quiet, max_minutes=_SECONDS_ALONE / 60, base_output_dir=folder, verbose=False)


def _play(player: Player, console: Console, when: str) -> dict[str, Score]:
    """Play against both scripted players, on seeds that training does not see."""
    from envfleet.training.evaluation import evaluate

    console.print(f"{when}: {_GAMES} games against each scripted player", style="dim")
    return {name: evaluate(player, name, games=_GAMES, seed=1_000_000).score for name in _SCRIPTED}


def _film(player: Player, path: Path) -> None:
    """Write two games against the weak player, one on each side."""
    from envfleet.envs.film import save_film
    from envfleet.envs.hockey.two_player import HockeyTwoEnv
    from envfleet.training.games import seat_player
    from envfleet.training.games.captions import caption_frames
    from envfleet.training.games.showing import show_games

    with contextlib.closing(HockeyTwoEnv(render_mode="rgb_array")) as env:
        mine, weak = seat_player(player), seat_player("weak")
        save_film(path, caption_frames(show_games(env, mine, weak, 2), mine.name, weak.name))


def _report(
    before: dict[str, Score], after: dict[str, Score], speeds: tuple[RunResult, RunResult, int], console: Console
) -> None:
    alone, together, num_envs = speeds
    table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
    for heading in ("games won against", "before", "after", "95 % interval", "lost after"):
        table.add_column(heading, justify="right" if table.columns else "left")
    for name in _SCRIPTED:
        low, high = after[name].win_interval
        table.add_row(
            f"the {name} scripted player",
            f"{before[name].win_rate:.1%}",
            f"[bold]{after[name].win_rate:.1%}[/bold]",
            f"{low:.1%} to {high:.1%}",
            f"{after[name].loss_rate:.1%}",
        )
    console.print()
    console.print(table)
    console.print(
        f"\n{together.total_steps:,} transitions: {together.steps_per_s:,.0f} a second with {num_envs} games at once, "
        f"{alone.steps_per_s:,.0f} with one, [bold]{together.steps_per_s / alone.steps_per_s:.1f} ×[/bold] as many.\n",
        soft_wrap=True,
    )


def _show_places(result: RunResult, film: Path, console: Console) -> None:
    run = result.run_dir
    places = {
        "Film of two games": str(film),
        "Plots": str(run / "plots"),
        "Watch it": f"envfleet watch {run} --against strong --out game.mp4",
        "Play against it": f"envfleet play --against {run}",
        "Train longer": "envfleet train ppo_kernel --num-envs 1024 --max-minutes 10",
    }
    show_places(places, console)
