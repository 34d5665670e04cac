"""Commands for trained players: evaluate, compare, watch, and play against them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envfleet.cli.console import JsonFile, check_output, make_console, progress_bar, show_file, write_figures
from envfleet.cli.options import EnvArgs, Trust
from envfleet.cli.parsing import parse_env_kwargs, refuse_given
from envfleet.cli.training import set_threads
from envfleet.errors import InvalidArgument
from envfleet.fleet.evaluating import Progress

if TYPE_CHECKING:
    import gymnasium as gym

    from envfleet.envs.games import Game
    from envfleet.training.games import MatchConfig
    from envfleet.training.games.showing import GameState
    from envfleet.training.phases import Environment

_FPS = 30.0
Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="File of an agent, folder of a run (its best agent), or a player of the game: random, a scripted player, "
        "my_package:MyPlayer.",
    ),
]
Env = Annotated[
    str | None,
    typer.Option(
        metavar="ENV",
        help="Environment: a two-player game such as hockey, a Gymnasium id, or package.module:make_env.",
        show_default="as the run was trained",
    ),
]
Opponent = Annotated[
    str | None,
    typer.Option(
        metavar="PLAYER",
        help="Opponent, in the same form as CHECKPOINT.",
        show_default="the game's strongest, else random",
    ),
]
Mode = Annotated[str | None, typer.Option(help="One of the game's modes.", show_default="the first")]
SideOption = Annotated[
    str | None,
    typer.Option(help="Side of the player, or both alternately.", show_default="as is usual"),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the games; the same seed gives the same games.")]


def evaluate(  # noqa: PLR0913 (one parameter per option)
    checkpoint: Checkpoint,
    *,
    opponent: Opponent = None,
    games: Annotated[int, typer.Option(min=1, help="Number of games or single-player episodes.")] = 200,
    env: Env = None,
    env_args: EnvArgs = [],  # noqa: B006 (typer copies it)
    side: SideOption = None,
    mode: Mode = None,
    seed: Seed = 0,
    trust: Trust = False,
    json_file: JsonFile = None,
) -> None:
    """Play games with CHECKPOINT and report its win rate, or its mean return in single-player environments."""
    from envfleet.agents import load_agent
    from envfleet.cli.reports import show_evaluation, show_returns
    from envfleet.training.evaluation import evaluate as run_evaluation
    from envfleet.training.games.players import load_player, name_of
    from envfleet.training.loop.evaluator import evaluate_single_player

    set_threads(1)
    place, game = _find_place(checkpoint, env, env_args)
    if game is None:
        _refuse_for_one(place, {"--opponent": opponent, "--side": side, "--mode": mode})
        with progress_bar(f"{games} episodes") as show:
            agent = load_agent(checkpoint, num_envs=1, trust=trust)
            returns = evaluate_single_player(agent, place, episodes=games, seed=seed, progress=show)
        show_returns({name_of(checkpoint): returns}, make_console())
        figures = dataclasses.asdict(returns)
    else:
        with progress_bar(f"{games} games against {opponent or game.strongest}") as show:
            match = _match(place, game, mode)
            player, other = (
                load_player(source, game=game, seed=2 * seed + k, trust=trust)
                for k, source in enumerate((checkpoint, opponent or game.strongest))
            )
            played = run_evaluation(player, other, games=games, seed=seed, side=side, match=match, progress=show)
        show_evaluation(played, make_console())
        figures = dataclasses.asdict(played) | played.figures()
    write_figures(json_file, json.dumps(figures, indent=2))


def tournament(  # noqa: PLR0913 (one parameter per option)
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of checkpoints: of one run, of several, or your own.")
    ],
    *,
    games: Annotated[int, typer.Option(min=1, help="Games of each pair, or single-player episodes.")] = 100,
    env: Env = None,
    env_args: EnvArgs = [],  # noqa: B006 (typer copies it)
    mode: Mode = None,
    seed: Seed = 0,
    trust: Trust = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=check_output, help="The picture; tournament.png in DIR by default."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Rate the checkpoints in DIR by games with each other and scripted players; or compare mean returns."""
    from envfleet.agents import load_agent
    from envfleet.cli.reports import show_returns, show_tournament
    from envfleet.training.environments import open_one
    from envfleet.training.evaluation import find_checkpoints, run_tournament
    from envfleet.training.games.players import load_player
    from envfleet.training.loop.evaluator import evaluate_single_player
    from envfleet.training.records.figures import plot_tournament

    set_threads(1)
    place, game = _find_place(str(folder), env, env_args)
    figures: dict[str, Any]
    if game is None:
        _refuse_for_one(place, {"--mode": mode, "--plot": plot})
        with contextlib.closing(open_one(place)) as sample:
            players = find_checkpoints(folder, sample.observation_space)
        returns = {}
        with progress_bar() as show:
            for number, (name, file) in enumerate(players.items()):
                show(name, number / len(players))
                agent = load_agent(file, num_envs=1, trust=trust)
                returns[name] = evaluate_single_player(agent, place, episodes=games, seed=seed)
        show_returns(returns, make_console())
        figures = {name: dataclasses.asdict(mean) for name, mean in returns.items()}
    else:
        files = find_checkpoints(folder, game.observation_space)
        with progress_bar(f"{len(files)} checkpoints") as show:
            everyone: dict[str, Any] = {
                name: load_player(file, name, game=game, seed=k, trust=trust)
                for k, (name, file) in enumerate(files.items())
            }
            everyone |= {name: name for name in game.scripts or [game.strongest]}
            match = _match(place, game, mode)
            played = run_tournament(everyone, games=games, seed=seed, match=match, progress=show)
        show_tournament(played, make_console())
        show_file("Picture", plot_tournament(played, plot or folder / "tournament.png"))
        figures = dataclasses.asdict(played)
    write_figures(json_file, json.dumps(figures, indent=2, default=lambda array: array.tolist()))


def watch(  # noqa: PLR0913 (one parameter per option)
    checkpoint: Checkpoint,
    *,
    against: Opponent = None,
    games: Annotated[int, typer.Option(min=1, help="Number of games.")] = 4,
    env: Env = None,
    env_args: EnvArgs = [],  # noqa: B006 (typer copies it)
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", callback=check_output, help="Write a film instead of opening a window: .gif or .mp4."
        ),
    ] = None,
    side: SideOption = None,
    mode: Mode = None,
    seed: Seed = 0,
    trust: Trust = False,
) -> None:
    """Show games of CHECKPOINT in a window or as a video: the first games that evaluate plays."""
    from envfleet.agents import load_agent
    from envfleet.envs.film import save_film
    from envfleet.training.games.players import LoadedPlayer, load_player, name_of
    from envfleet.training.games.showing import caption_frames, show_games

    if out is not None:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # without a display pygame would raise an error
    place, game = _find_place(checkpoint, env, env_args)
    with _opened(place, game, mode, "rgb_array" if out else "human") as shown:
        if game is None:
            _refuse_for_one(place, {"--against": against, "--side": side, "--mode": mode})
            names: tuple[str, ...] = (name_of(checkpoint),)
            alone = LoadedPlayer(names[0], policy=load_agent(checkpoint, num_envs=1, trust=trust))
            states = show_games(shown, [alone], games, seed=seed)
        else:
            player, opponent = (
                load_player(source, game=game, seed=2 * seed + k, trust=trust)
                for k, source in enumerate((checkpoint, against or game.strongest))
            )
            names = player.name, opponent.name
            side = side or game.default_side(_match(place, game, mode).mode)
            states = show_games(shown, [player, opponent], games, seed=seed, side=side, game=game)
        states = _tell(states, names, game)
        if out is None:
            _follow(states)
        else:
            fps = shown.metadata.get("render_fps") or _FPS
            with progress_bar() as show:
                film = save_film(out, caption_frames(_track(states, games, show), *names, fps=fps), fps=fps)
            show_file("Film", film)


def play(
    *,
    against: Opponent = None,
    games: Annotated[int, typer.Option(min=1, help="Number of games.")] = 10,
    env: Env = None,
    env_args: EnvArgs = [],  # noqa: B006 (typer copies it)
    side: Annotated[str | None, typer.Option(help="Your side.", show_default="the first side")] = None,
    mode: Mode = None,
    seed: Seed = 0,
    trust: Trust = False,
) -> None:
    """Play at the keyboard: in hockey arrows move, W and S turn, space shoots; Escape ends it."""
    from envfleet.envs.keyboard import Keyboard
    from envfleet.fleet.checks import check_choice
    from envfleet.training.games import LoadedPlayer, load_player
    from envfleet.training.games.showing import Person, show_games

    place, game = _find_place(against, env, env_args)
    if game is None:
        _refuse_for_one(place, {"--against": against, "--side": side, "--mode": mode})
        with _opened(place, game, mode, "human") as shown:
            alone = LoadedPlayer("you", policy=Person(Keyboard(shown, place.id)))
            _follow(_tell(show_games(shown, [alone], games, seed=seed), (), game))
        return
    side = side or game.sides[0]
    check_choice("side", side, game.sides)
    with _opened(place, game, mode, "human") as shown:
        you = LoadedPlayer("you", policy=Person(game.person(shown, game.sides.index(side))))
        opponent = load_player(against or game.strongest, game=game, trust=trust)
        states = show_games(shown, [you, opponent], games, seed=seed, side=side, game=game)
        _follow(_tell(states, (you.name, opponent.name), game))


def _find_place(player: str | None, env: str | None, env_args: list[str]) -> tuple[Environment, Game | None]:
    """Return the environment of a player: from the options, else from its run, else the first known game.

    Returns:
        Environment section, and its two-player game or `None`.

    Raises:
        InvalidArgument: Unknown environment, or a folder with runs in different environments.
    """
    from pydantic import ValidationError

    from envfleet.training.config import read_config
    from envfleet.training.environments import find_game
    from envfleet.training.phases import Environment

    kwargs = parse_env_kwargs(env_args)
    if env is not None:
        try:
            place = Environment(id=env, kwargs=kwargs)
        except ValidationError as error:
            raise InvalidArgument(f"--env {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
    else:
        files = [] if player is None else _configs_of(Path(player))
        # The environment of the last phase, as in evaluations during a run.
        places = [read_config(file).curriculum.phases[-1].environment for file in files] or [Environment()]
        names = sorted({one.id if one.is_known_game else f"{one.id} {one.kwargs or ''}".strip() for one in places})
        if len(names) > 1:
            raise InvalidArgument(
                f"the runs in {player} were trained on {', '.join(names)}: pass one of them by --env and --env-arg"
            )
        place = places[0].model_copy(update={"kwargs": places[0].kwargs | kwargs})
    game = find_game(place)
    if game is not None:
        try:
            game.check(place.kwargs)
        except InvalidArgument as error:
            raise InvalidArgument(f"{place.id!r} {error}") from None
    return place, game


def _configs_of(path: Path) -> list[Path]:
    """Return the configuration of the run of a file or folder, or those of all runs in a folder."""
    above = [folder / "config.json" for folder in (path, *path.absolute().parents[:2])]
    configs = [file for file in above if (file.parent / "checkpoints").is_dir() and file.is_file()]
    return configs[:1] or (sorted(path.glob("*/config.json")) if path.is_dir() else [])


def _refuse_for_one(place: Environment, options: dict[str, Any]) -> None:
    """Reject options that only two-player games have."""
    refuse_given(options, f"{place.id!r} is for one player")


def _match(place: Environment, game: Game, mode: str | None) -> MatchConfig:
    """Return the settings of games."""
    from envfleet.training.games import MatchConfig

    settings = {name: value for name, value in place.kwargs.items() if name != "starter"}  # each game has one
    return MatchConfig(game=game, mode=mode or "", settings=settings)


@contextlib.contextmanager
def _opened(place: Environment, game: Game | None, mode: str | None, render_mode: str) -> Iterator[gym.Env[Any, Any]]:
    """Open the environment in which games are shown."""
    from envfleet.envs.keyboard import load_pygame, require_display
    from envfleet.training.environments import open_one

    if render_mode == "rgb_array":
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")  # a film is silent: open no sound device
    else:
        require_display()
    unseen = () if render_mode == "rgb_array" else (load_pygame().error,)
    try:
        if game is None:
            env = open_one(place, render_mode=render_mode)
        else:
            match = _match(place, game, mode)
            env = game.open(match.mode, match.settings, render_mode)
    except TypeError as error:
        if "'render_mode'" not in str(error):
            raise
        raise InvalidArgument(
            f"{place.id!r} cannot be shown, as its constructor has no render_mode ({error}): accept that keyword, and "
            "return frames from render()"
        ) from error
    try:
        yield env
    except unseen as error:
        raise InvalidArgument(
            f"no window can be opened here ({error}): write a film with envfleet watch CHECKPOINT --out game.gif"
        ) from error
    finally:
        env.close()


def _tell(states: Iterator[GameState], names: tuple[str, ...], game: Game | None) -> Iterator[GameState]:
    """Print the result of each game or episode, and yield its states."""
    outcomes: list[int | None] = []
    for state in states:
        yield state
        if not state.is_last:
            continue
        if game is None:
            text = f"Episode {state.game + 1}: return {state.total:.2f} after {state.step} steps."
        else:
            outcomes.append(state.outcome)
            won, drawn, lost = (outcomes.count(outcome) for outcome in (1, 0, -1))
            what = {1: f"{names[0]} won", 0: "a draw", -1: f"{names[1]} won"}[state.outcome or 0]
            side = game.sides[0 if state.is_left else 1]
            text = f"Game {len(outcomes)}, {names[0]} on the {side}: {what} after {state.step} steps. "
            text += f"So far {won} won, {drawn} drawn, {lost} lost."
        typer.echo(text)


def _track(states: Iterator[GameState], games: int, show: Progress) -> Iterator[GameState]:
    """Update a progress bar after each step, and yield the states."""
    for state in states:
        show(f"game {state.game + 1} of {games}", (state.game + state.is_last) / games)
        yield state


def _follow(states: Iterator[GameState]) -> None:
    """Show games in a window until they end or the window is closed."""
    from envfleet.training.games.showing import wants_to_leave

    for _ in states:
        if wants_to_leave():
            return
