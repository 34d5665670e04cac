"""`envfleet search`: find the values of some keys with which a configuration trains best."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from envfleet.cli.console import make_console, show_places
from envfleet.cli.options import Backend, Device, MaxMinutes, NumEnvs, Quiet, Threads, Workers
from envfleet.cli.training import set_threads

if TYPE_CHECKING:
    from envfleet.training.search import SearchResult


def search(  # noqa: PLR0913 (one parameter per option)
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="Configuration, as in train.")],
    *,
    space: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="JSON file: paths of keys, each with a list of choices, or with low, high and log."
        ),
    ],
    trials: Annotated[int, typer.Option(min=1, help="Number of runs in all.")] = 20,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder of the search; a search that is there is continued.")
    ] = Path("results/search"),
    num_envs: NumEnvs = None,
    backend: Backend = None,
    workers: Workers = None,
    device: Device = None,
    threads: Threads = 1,
    max_minutes: MaxMinutes = None,
    max_transitions: Annotated[
        int | None, typer.Option(min=1, help="Stop each run after this many transitions.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Search for the values of some keys with which CONFIG trains best; the same command continues a search."""
    from envfleet.training import RunOptions
    from envfleet.training.search import search as run_search

    set_threads(threads)
    options: dict[str, Any] = {
        "num_envs": num_envs or 1, "backend": backend, "workers": workers, "device": device or "cpu",
        "max_minutes": max_minutes, "max_transitions": max_transitions,
    }  # fmt: skip
    result = run_search(config, space, trials=trials, out=out, options=RunOptions(**options), verbose=not quiet)
    _report(result, num_envs or 1, make_console())
    if not result.is_complete:
        raise typer.Exit(130)


def _report(result: SearchResult, num_envs: int, console: Console) -> None:
    from envfleet.training.search import describe

    if not result.is_complete:
        console.print("Interrupted; the search is saved. The same command continues it.")
    completed = sum(score is not None for score in result.scores)
    console.print(f"{completed} of {len(result.scores)} trials completed.")
    if result.best is None:
        return
    score, values = result.scores[result.best], result.values[result.best]
    console.print(f"[bold]Best: {score:.4g}[/bold], trial {result.best + 1}: {escape(describe(values))}\n")
    places = {
        "Plot": str(result.folder / "search.png"),
        "Best configuration": str(result.best_config),
        "Train with it": f"envfleet train {result.best_config} --num-envs {num_envs}",
    }
    show_places(places, console)
