"""Commands for trained players: evaluate them, let them play each other, watch them, play against them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.markup import escape

from envfleet.cli.console import JsonFile, check_output, make_console, progress_bar, readable_errors, write_figures
from envfleet.cli.training import set_threads
from envfleet.errors import InvalidArgument

if TYPE_CHECKING:
    from envfleet.envs.hockey.two_player import HockeyTwoEnv
    from envfleet.training.games import Rink
    from envfleet.training.games.showing import Moment

Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="The file of an agent, the folder of a run (its best agent), champion, weak or strong.",
        show_default=False,
    ),
]
Opponent = Annotated[str, typer.Option(metavar="PLAYER", help="weak, strong, champion, or another checkpoint.")]
Mode = Annotated[str, typer.Option(help="NORMAL, TRAIN_SHOOTING or TRAIN_DEFENSE.")]
EngineOption = Annotated[str, typer.Option(help="compiled, or box2d: the same games, a hundred times slower.")]
SideOption = Annotated[
    str,
    typer.Option(
        help="Where the player sits: left, right, or both in turns.", show_default="both; left in the training modes"
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Of the games; the same seed gives the same games.")]


def evaluate(
    checkpoint: Checkpoint,
    *,
    opponent: Opponent = "strong",
    games: Annotated[int, typer.Option(min=1, help="How many.")] = 200,
    engine: EngineOption = "compiled",
    side: SideOption = "",
    mode: Mode = "NORMAL",
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Play games of hockey with CHECKPOINT and tell how many it wins."""
    with readable_errors():
        from envfleet.training.evaluation import evaluate as run_evaluation
        from envfleet.training.evaluation.reports import evaluation_json, show_evaluation

        set_threads(1)
        rink = _rink(engine, mode)
        with progress_bar() as tell:
            tell(f"{games} games against {opponent}", 0.0)
            evaluation = run_evaluation(
                checkpoint, opponent, games=games, seed=seed, side=cast(Any, side or None), rink=rink
            )
        show_evaluation(evaluation, make_console())
        write_figures(json_file, json.dumps(evaluation_json(evaluation), indent=2))


def tournament(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="With checkpoints: of one run, of several, or your own.", show_default=False
        ),
    ],
    *,
    games: Annotated[int, typer.Option(min=1, help="Of each pair.")] = 100,
    engine: EngineOption = "compiled",
    mode: Mode = "NORMAL",
    seed: Seed = 0,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=check_output, help="The picture; tournament.png in DIR by default."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Let all checkpoints in DIR and the scripted players meet each other: ratings, a table and a picture."""
    with readable_errors():
        from envfleet.training.evaluation import find_checkpoints, run_tournament
        from envfleet.training.evaluation.reports import show_tournament, tournament_json
        from envfleet.training.games.players import SCRIPTED
        from envfleet.training.records.tournament_plot import plot_tournament

        players: dict[str, Any] = {**find_checkpoints(folder), **{name: name for name in SCRIPTED}}
        set_threads(1)
        rink = _rink(engine, mode)
        with progress_bar() as tell:
            played = run_tournament(players, games=games, seed=seed, rink=rink, progress=tell)
        console = make_console()
        show_tournament(played, console)
        picture = plot_tournament(played, plot or folder / "tournament.png")
        console.print(f"[dim]Picture: {escape(str(picture))}[/dim]", soft_wrap=True)
        write_figures(json_file, json.dumps(tournament_json(played), indent=2))


def watch(
    checkpoint: Checkpoint,
    *,
    against: Opponent = "strong",
    games: Annotated[int, typer.Option(min=1, help="How many.")] = 4,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", callback=check_output, help="Write a film instead of opening a window: .gif or .mp4."
        ),
    ] = None,
    side: SideOption = "",
    mode: Mode = "NORMAL",
    seed: Seed = 0,
) -> None:
    """Show games of hockey of CHECKPOINT, in a window or as a film; they are the first ones that evaluate counts."""
    with readable_errors():
        from envfleet.envs.hockey.film import save_film
        from envfleet.training.games import seat_player
        from envfleet.training.games.captions import caption_frames
        from envfleet.training.games.matches import usual_side
        from envfleet.training.games.showing import show_games

        player, opponent = seat_player(checkpoint), seat_player(against)
        with _open(_rink("box2d", mode), "rgb_array" if out else "human") as env:
            moments = show_games(env, player, opponent, games, seed=seed, side=cast(Any, side or usual_side(mode)))
            told = _tell(moments, player.name, opponent.name)
            if out is None:
                _follow(told)
                return
            save_film(out, caption_frames(told, player.name, opponent.name))
        make_console().print(f"[dim]Film: {escape(str(out))}[/dim]", soft_wrap=True)


def play(
    *,
    against: Opponent = "strong",
    games: Annotated[int, typer.Option(min=1, help="How many.")] = 10,
    side: Annotated[Literal["left", "right"], typer.Option(help="Where you play.")] = "left",
    mode: Mode = "NORMAL",
    seed: Seed = 0,
) -> None:
    """Play hockey at the keyboard: arrows move, W and S turn, space shoots, Escape ends it."""
    with readable_errors():
        from envfleet.training.games import Seated, seat_player
        from envfleet.training.games.showing import Person, show_games

        opponent = seat_player(against)
        with _open(_rink("box2d", mode), "human") as env:
            person = Seated("you", policy=Person(env, side == "left"))
            _follow(_tell(show_games(env, person, opponent, games, seed=seed, side=side), "you", opponent.name))


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (evaluate, tournament, watch, play):
        app.command()(command)


def _rink(engine: str, mode: str) -> Rink:
    from envfleet.training.games import Rink

    return Rink(engine=cast(Any, engine), mode=mode)


@contextlib.contextmanager
def _open(rink: Rink, render_mode: str) -> Iterator[HockeyTwoEnv]:
    """Open the environment in which games are shown."""
    import pygame

    from envfleet.envs.hockey.rendering import require_display
    from envfleet.envs.hockey.two_player import HockeyTwoEnv

    if render_mode == "human":
        require_display()
    env = HockeyTwoEnv(rink.mode, keep_mode=rink.keep_mode, render_mode=render_mode)
    try:
        yield env
    except pygame.error as error:
        raise InvalidArgument(
            f"no window can be opened here ({error}): write a film with envfleet watch CHECKPOINT --out game.gif"
        ) from error
    finally:
        env.close()


def _tell(moments: Iterator[Moment], player: str, opponent: str) -> Iterator[Moment]:
    """Print what came of each game, and pass its moments on."""
    from envfleet.training.evaluation import Score

    console, outcomes = make_console(), []
    for moment in moments:
        yield moment
        if moment.outcome is not None:
            outcomes.append(moment.outcome)
            score = Score(*(outcomes.count(outcome) for outcome in (1, 0, -1)))
            what = {1: f"{player} won", 0: "a draw", -1: f"{opponent} won"}[moment.outcome]
            seat = "left" if moment.is_left else "right"
            console.print(
                f"Game {len(outcomes)}, {player} on the {seat}: {what} after {moment.step} steps. "
                f"So far {score.wins} won, {score.draws} drawn, {score.losses} lost.",
                markup=False,
            )


def _follow(moments: Iterator[Moment]) -> None:
    """Let games go on in a window until they are over or somebody has seen enough."""
    from envfleet.training.games.showing import wants_to_leave

    for _ in moments:
        if wants_to_leave():
            return
