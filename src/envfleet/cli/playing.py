"""Commands for trained players: evaluate them, let them play each other, watch them, play against them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from envfleet.cli.console import JsonFile, check_output, make_console, progress_bar, readable_errors, write_figures
from envfleet.cli.parsing import parse_env_kwargs
from envfleet.cli.training import set_threads
from envfleet.errors import InvalidArgument

if TYPE_CHECKING:
    import gymnasium as gym

    from envfleet.envs.games import Game
    from envfleet.training.config.phases import Environment
    from envfleet.training.games.showing import Moment

Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="The file of an agent, the folder of a run (its best agent), or a player that the game knows: random, its "
        "scripted ones, my_package:MyPlayer.",
        show_default=False,
    ),
]
Env = Annotated[
    str | None,
    typer.Option(
        metavar="ENV",
        help="What is played: a game for two such as hockey, a Gymnasium id, or package.module:make_env.",
        show_default="as the run was trained",
    ),
]
EnvArgs = Annotated[
    list[str], typer.Option("--env-arg", "-a", metavar="NAME=VALUE", help="Argument of ENV; repeatable.")
]
Opponent = Annotated[
    str | None,
    typer.Option(
        metavar="PLAYER",
        help="The other player, given like CHECKPOINT.",
        show_default="the game's strongest, else random",
    ),
]
Mode = Annotated[str | None, typer.Option(help="One of the game's modes.", show_default="the first")]
EngineOption = Annotated[str | None, typer.Option(help="One of the game's engines.", show_default="the first")]
SideOption = Annotated[
    str | None,
    typer.Option(help="Where the player sits: a seat of the game, or both in turns.", show_default="as is usual"),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the games; the same seed gives the same games.")]


def evaluate(  # noqa: PLR0913 (one parameter per option)
    checkpoint: Checkpoint,
    *,
    opponent: Opponent = None,
    games: Annotated[int, typer.Option(min=1, help="Number of games, or of episodes in environments for one.")] = 200,
    env: Env = None,
    env_args: EnvArgs = [],  # noqa: B006 (typer copies it)
    engine: EngineOption = None,
    side: SideOption = None,
    mode: Mode = None,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Play games with CHECKPOINT and report how many it wins; of environments for one, the mean return."""
    with readable_errors():
        from envfleet.cli.match_report import show_evaluation, show_returns
        from envfleet.training.evaluation import evaluate as run_evaluation

        set_threads(1)
        place = find_place(checkpoint, env, env_args)
        figures: dict[str, Any]
        if place.game is None:
            place.refuse({"--opponent": opponent, "--engine": engine, "--side": side, "--mode": mode})
            found = place.evaluate(checkpoint, games, seed)
            show_returns({Path(checkpoint).name: found}, make_console())
            figures = dataclasses.asdict(found)
        else:
            rink = place.rink(engine, mode)
            with progress_bar() as tell:
                tell(f"{games} games against {opponent or place.game.strongest}", 0.0)
                played = run_evaluation(checkpoint, opponent, games=games, seed=seed, side=side, rink=rink)
            show_evaluation(played, make_console())
            figures = dataclasses.asdict(played) | played.figures()
        write_figures(json_file, json.dumps(figures, indent=2))


def tournament(  # noqa: PLR0913 (one parameter per option)
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder of checkpoints: of one run, of several, or your own.", show_default=False
        ),
    ],
    *,
    games: Annotated[int, typer.Option(min=1, help="Games of each pair, or episodes in environments for one.")] = 100,
    env: Env = None,
    env_args: EnvArgs = [],  # noqa: B006 (typer copies it)
    engine: EngineOption = None,
    mode: Mode = None,
    seed: Seed = 0,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=check_output, help="The picture; tournament.png in DIR by default."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Rate the checkpoints in DIR by games with each other and scripted players; or compare mean returns."""
    with readable_errors():
        from envfleet.cli.match_report import show_returns, show_tournament
        from envfleet.training.evaluation import find_checkpoints, run_tournament
        from envfleet.training.records.tournament_plot import plot_tournament

        set_threads(1)
        place, console = find_place(str(folder), env, env_args), make_console()
        players: dict[str, Any] = {**find_checkpoints(folder, place.observation_space)}
        with progress_bar() as tell:
            if place.game is None:
                place.refuse({"--engine": engine, "--mode": mode, "--plot": plot})
                returns = {}
                for number, (name, player) in enumerate(players.items()):
                    tell(name, number / len(players))
                    returns[name] = place.evaluate(player, games, seed)
            else:
                known = place.game.scripts or [place.game.strongest]
                players |= {name: name for name in known}
                played = run_tournament(players, games=games, seed=seed, rink=place.rink(engine, mode), progress=tell)
        if place.game is None:
            show_returns(returns, console)
            figures = {name: dataclasses.asdict(found) for name, found in returns.items()}
        else:
            show_tournament(played, console)
            picture = plot_tournament(played, plot or folder / "tournament.png")
            console.print(f"[dim]Picture: {escape(str(picture))}[/dim]", soft_wrap=True)
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
) -> None:
    """Show games of CHECKPOINT in a window or as a film: the first ones that evaluate counts."""
    with readable_errors():
        from envfleet.envs.film import save_film
        from envfleet.training.games import seat_player
        from envfleet.training.games.captions import caption_frames
        from envfleet.training.games.showing import show_episodes, show_games

        place = find_place(checkpoint, env, env_args)
        game = place.game
        with place.open(mode, "rgb_array" if out else "human") as shown:
            if game is None:
                place.refuse({"--against": against, "--side": side, "--mode": mode})
                names: tuple[str, ...] = (Path(checkpoint).name,)
                moments = _tell_returns(show_episodes(shown, place.agent(checkpoint), games, seed=seed))
            else:
                player, opponent = (seat_player(who, game=game) for who in (checkpoint, against or game.strongest))
                side = side or game.usual_seat(place.rink(None, mode).mode)
                moments = show_games(shown, player, opponent, games, seed=seed, side=side, game=game)
                names = player.name, opponent.name
                moments = _tell(moments, *names, game)
            if out is None:
                _follow(moments)
                return
            fps = shown.metadata.get("render_fps") or _FPS
            save_film(out, caption_frames(moments, *names, fps=fps), fps=fps)
        make_console().print(f"[dim]Film: {escape(str(out))}[/dim]", soft_wrap=True)


def play(
    *,
    against: Opponent = None,
    games: Annotated[int, typer.Option(min=1, help="Number of games.")] = 10,
    env: Env = None,
    env_args: EnvArgs = [],  # noqa: B006 (typer copies it)
    side: Annotated[str | None, typer.Option(help="Where you sit.", show_default="the first seat")] = None,
    mode: Mode = None,
    seed: Seed = 0,
) -> None:
    """Play at the keyboard: in hockey arrows move, W and S turn, space shoots; Escape ends it."""
    with readable_errors():
        from envfleet.fleet.checks import check_choice
        from envfleet.training.games import Seated, seat_player
        from envfleet.training.games.showing import Person, show_episodes, show_games

        place = find_place(against or "", env, env_args)
        game = place.game
        if game is not None:
            check_choice("side", side or game.seats[0], game.seats)
        with place.open(mode, "human") as shown:
            if game is None:
                from envfleet.envs.keyboard import Keyboard

                place.refuse({"--against": against, "--side": side, "--mode": mode})
                person = Person(Keyboard(shown, place.name))
                _follow(_tell_returns(show_episodes(shown, person, games, seed=seed)))
                return
            opponent, side = seat_player(against or game.strongest, game=game), side or game.seats[0]
            you = Seated("you", policy=Person(game.person(shown, game.seats.index(side))))
            moments = show_games(shown, you, opponent, games, seed=seed, side=side, game=game)
            _follow(_tell(moments, "you", opponent.name, game))


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (evaluate, tournament, watch, play):
        app.command()(command)


_FPS = 30.0


@dataclasses.dataclass(frozen=True)
class Place:
    """What is played.

    Attributes:
        section: As a configuration has it.
        game: What that is; `None` if it is for one.
    """

    section: Environment
    game: Game | None

    @property
    def name(self) -> str:
        """Its name."""
        return self.section.id

    def refuse(self, options: Mapping[str, Any]) -> None:
        """Refuse options that mean something in games for two only.

        Raises:
            InvalidArgument: One is given.
        """
        given = [name for name, value in options.items() if value is not None]
        if given:
            raise InvalidArgument(f"{', '.join(given)} for {self.name!r}, which is for one player: leave it out")

    def rink(self, engine: str | None, mode: str | None) -> Any:
        """Return where games are played."""
        from envfleet.training.games import Rink

        assert self.game is not None  # noqa: S101  # callers have looked
        return Rink(game=self.game, engine=engine, mode=mode or "", settings=self._settings)

    @property
    def _settings(self) -> dict[str, Any]:
        return {name: value for name, value in self.section.settings.items() if name != "starter"}  # each game has one

    @property
    def observation_space(self) -> Any:
        """Return that of one player."""
        if self.game is not None:
            return self.game.observation_space
        with contextlib.closing(self.section.make()) as env:
            return env.observation_space

    def agent(self, checkpoint: str | Path) -> Any:
        """Return the agent in a file or a run."""
        from envfleet.agents import load_agent

        return load_agent(checkpoint, num_envs=1)

    def evaluate(self, checkpoint: str | Path, episodes: int, seed: int) -> Any:
        """Return the mean return of an agent that plays alone."""
        from envfleet.training.loop.examining import evaluate_alone

        return evaluate_alone(self.agent(checkpoint), self.section, episodes=episodes, seed=seed)

    @contextlib.contextmanager
    def open(self, mode: str | None, render_mode: str) -> Iterator[gym.Env[Any, Any]]:
        """Open the environment in which games are shown."""
        from envfleet.envs.keyboard import load_pygame

        if render_mode == "rgb_array":
            os.environ.setdefault("SDL_AUDIODRIVER", "dummy")  # a film is silent: open no sound device
        unseen = () if render_mode == "rgb_array" else (load_pygame().error,)
        try:
            if self.game is not None:
                env = self.game.open(self.rink(None, mode).mode, self._settings, render_mode)
            else:
                env = self.section.make(render_mode=render_mode)
        except TypeError as error:
            if "'render_mode'" not in str(error):
                raise
            raise InvalidArgument(
                f"{self.name!r} cannot be shown, as it takes no render_mode ({error}): let it take that keyword, and "
                "return pictures from render()"
            ) from error
        try:
            yield env
        except unseen as error:
            raise InvalidArgument(
                f"no window can be opened here ({error}): write a film with envfleet watch CHECKPOINT --out game.gif"
            ) from error
        finally:
            env.close()


def find_place(player: str, env: str | None, env_args: list[str]) -> Place:
    """Find what a player plays: what is asked for, else what its run was trained on, else the first known game.

    Raises:
        InvalidArgument: There is no such environment, or runs in a folder were trained on different ones.
    """
    from pydantic import ValidationError

    from envfleet.envs.games import find_game
    from envfleet.training.config import read_config
    from envfleet.training.config.phases import Environment

    kwargs = parse_env_kwargs(env_args)
    if env is not None:
        try:
            section = Environment(id=env, kwargs=kwargs)
        except ValidationError as error:
            raise InvalidArgument(f"--env {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
    else:
        files = _configs_of(Path(player)) if player else []
        sections = [read_config(file).curriculum.phases[0].environment for file in files] or [Environment()]
        section = sections[0]
        if any(one.id != section.id for one in sections):
            names = ", ".join(sorted({one.id for one in sections}))
            raise InvalidArgument(f"the runs in {player} were trained on {names}: pass one of them by --env")
        section = section.model_copy(update={"kwargs": section.kwargs | kwargs})
    return Place(section, None if section.is_remote else find_game(section.id, section.kwargs))


def _configs_of(path: Path) -> list[Path]:
    """Return the configurations of the run that a file or folder belongs to, or of the runs in a folder."""
    above = [folder / "config.json" for folder in (path, *path.absolute().parents[:2])]
    mine = [file for file in above if (file.parent / "checkpoints").is_dir() and file.is_file()]
    return mine[:1] or (sorted(path.glob("*/config.json")) if path.is_dir() else [])


def _tell(moments: Iterator[Moment], player: str, opponent: str, game: Game) -> Iterator[Moment]:
    """Print what came of each game, and pass its moments on."""
    from envfleet.training.evaluation import Score

    console, outcomes = make_console(), []
    for moment in moments:
        yield moment
        if moment.outcome is not None:
            outcomes.append(moment.outcome)
            score = Score(*(outcomes.count(outcome) for outcome in (1, 0, -1)))
            what = {1: f"{player} won", 0: "a draw", -1: f"{opponent} won"}[moment.outcome]
            console.print(
                f"Game {len(outcomes)}, {player} on the {game.seats[0 if moment.is_left else 1]}: {what} after "
                f"{moment.step} steps. So far {score.wins} won, {score.draws} drawn, {score.losses} lost.",
                markup=False,
            )


def _tell_returns(moments: Iterator[Moment]) -> Iterator[Moment]:
    """Print the return of each episode, and pass its moments on."""
    console = make_console()
    for moment in moments:
        yield moment
        if moment.is_last:
            console.print(f"Episode {moment.game + 1}: return {moment.total:.2f} after {moment.step} steps.")


def _follow(moments: Iterator[Moment]) -> None:
    """Let games go on in a window until they are over or somebody has seen enough."""
    from envfleet.training.games.showing import wants_to_leave

    for _ in moments:
        if wants_to_leave():
            return
