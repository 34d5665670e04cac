"""`envfleet serve` and `envfleet token`: a service for many users, and their tokens."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from envfleet.cli.console import make_console, make_table, require
from envfleet.errors import InvalidArgument

if TYPE_CHECKING:
    from envfleet.service.users.auth import Tokens

DATABASE = "sqlite:///envfleet.db"
_MODULES = ("alembic", "fastapi", "sqlalchemy", "uvicorn")
Database = Annotated[
    str,
    typer.Option(
        metavar="URL", envvar="ENVFLEET_DATABASE", help="Where all is kept: sqlite:///FILE or postgresql+psycopg://…"
    ),
]
token_app = typer.Typer(name="token", help="Make, list, revoke and rotate tokens of a service.", no_args_is_help=True)


def serve(  # noqa: PLR0913 (one parameter per option)
    *,
    env: Annotated[
        list[str], typer.Option("--env", "-e", metavar="ENV", help="An environment to host; repeatable.")
    ] = ["Turbofan-v0"],  # noqa: B006 (typer copies it)
    database: Database = DATABASE,
    host: Annotated[str, typer.Option(metavar="HOST", help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 for any free port.")] = 8001,
    workers: Annotated[int, typer.Option(min=1, help="Processes; more than one needs PostgreSQL.")] = 1,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="Backend of environments that are not kernels.")
    ] = "process",
    workers_per_fleet: Annotated[
        int, typer.Option(min=1, help="Worker processes of one fleet; kernels need none.")
    ] = 1,
    step_timeout: Annotated[
        float,
        typer.Option(metavar="S", min=0.1, help="Seconds for a step or reset of one sub-environment; not for kernels."),
    ] = 10.0,
    max_processes: Annotated[
        int, typer.Option(min=1, help="Worker processes of all fleets, per service process.")
    ] = 128,
    max_num_envs: Annotated[int, typer.Option(min=1, help="Sub-environments of one fleet.")] = 16_384,
    max_live_envs: Annotated[int, typer.Option(min=1, help="Sub-environments of one user.")] = 20_000,
    max_steps_per_day: Annotated[
        int | None, typer.Option(min=1, help="Steps of one user; any number if not given.")
    ] = None,
    idle_minutes: Annotated[float, typer.Option(min=0.1, help="Fleets are closed after this long unused.")] = 60.0,
    retention_days: Annotated[float, typer.Option(min=0.01, help="How long closed fleets can be replayed.")] = 30.0,
    abandon_penalty: Annotated[
        float | None,
        typer.Option(metavar="X", min=0.0, help="Cost of an unfinished ranked episode where no other is stated."),
    ] = None,
    ranked_episodes: Annotated[
        list[str],
        typer.Option(metavar="[ENV=]N", help="Episodes of a ranked attempt, of all or of one ENV; repeatable."),
    ] = [],  # noqa: B006 (typer copies it)
    attempts_per_day: Annotated[int, typer.Option(min=1, help="Ranked attempts of one user in one environment.")] = 5,
    has_private_scores: Annotated[
        bool, typer.Option("--no-public-scores", help="Show leaderboards to users with a token only.")
    ] = False,
    has_pictures: Annotated[
        bool, typer.Option("--pictures", help="Show participants pictures of environments that draw.")
    ] = False,
    has_access_log: Annotated[
        bool, typer.Option("--access-log", help="Write a line of JSON per request to standard output.")
    ] = False,
) -> None:
    """Host environments for many people; prints the address, and at the first start a token."""
    require("serve", *_MODULES)
    from envfleet.service.offers import make_offer
    from envfleet.service.run import run
    from envfleet.service.settings import Settings

    if workers > 1 and database.startswith("sqlite"):
        raise InvalidArgument(f"workers={workers} with {database}: pass a PostgreSQL database, or one worker")
    limits: dict[str, Any] = {
        "workers": workers_per_fleet,
        "step_timeout_s": step_timeout,
        "max_num_envs": max_num_envs,
        "abandon_penalty": abandon_penalty,
    }
    counts = _count_episodes(ranked_episodes, env)
    settings = Settings(
        database=database,
        offers=tuple(
            make_offer(name, backend=backend, has_pictures=has_pictures, **limits, **counts.get(name, {}))
            for name in env
        ),
        attempts_per_day=attempts_per_day,
        max_processes=max_processes,
        max_live_envs=max_live_envs,
        max_steps_per_day=max_steps_per_day,
        idle_timeout_s=idle_minutes * 60.0,
        retention_days=retention_days,
        has_public_scores=not has_private_scores,
        has_access_log=has_access_log,
    )
    run(settings, host=host, port=port, workers=workers, tell=typer.echo)


def _count_episodes(options: list[str], envs: list[str]) -> dict[str, dict[str, int]]:
    """Read `--ranked-episodes`, by environment."""
    counts: dict[str, dict[str, int]] = {}
    for option in options:
        name, has_name, number = option.rpartition("=")
        if not (number.isascii() and number.isdigit() and int(number) > 0 and (not has_name or name in envs)):
            raise InvalidArgument(f"--ranked-episodes {option}: pass N or ENV=N, with an ENV that is hosted")
        counts |= {env: {"ranked_episodes": int(number)} for env in ([name] if has_name else envs)}
    return counts


@token_app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="USER", help="Name of the user; a new name creates a user.")],
    *,
    role: Annotated[
        str | None, typer.Option(metavar="ROLE", help="Role of the user: participant (default) or admin.")
    ] = None,
    max_live_envs: Annotated[int | None, typer.Option(min=0, help="Instead of the service's.")] = None,
    max_steps_per_day: Annotated[int | None, typer.Option(min=0, help="Instead of the service's.")] = None,
    database: Database = DATABASE,
) -> None:
    """Make a token. It is shown this once."""
    limits = {"max_live_envs": max_live_envs, "max_steps_per_day": max_steps_per_day}
    typer.echo(_tokens(database).create(name, role=role, **limits))


@token_app.command("list")
def list_tokens(*, database: Database = DATABASE) -> None:
    """List tokens by their first characters."""
    headings = ("id", "user", "role", "token", "created", "revoked")
    table = make_table(*headings, texts=len(headings))
    for row in _tokens(database).list():
        times = (
            "" if at is None else dt.datetime.fromtimestamp(at, dt.UTC).isoformat(" ", "seconds")
            for at in (row["created_at"], row["revoked_at"])
        )
        table.add_row(str(row["id"]), escape(row["user"]), row["role"], f"{row['prefix']}…", *times)
    make_console().print(table)


@token_app.command("revoke")
def revoke(
    token_id: Annotated[int, typer.Argument(metavar="ID", help="As `envfleet token list` shows it.")],
    *,
    database: Database = DATABASE,
) -> None:
    """Make a token worthless."""
    _tokens(database).revoke(token_id)


@token_app.command("rotate")
def rotate(
    token_id: Annotated[int, typer.Argument(metavar="ID", help="As `envfleet token list` shows it.")],
    *,
    database: Database = DATABASE,
) -> None:
    """Revoke a token and make another for the same user. It is shown this once."""
    typer.echo(_tokens(database).rotate(token_id))


def _tokens(database: str) -> Tokens:
    require("serve", *_MODULES)
    from envfleet.service.database.store import Store
    from envfleet.service.users.auth import Tokens

    store = Store(database)
    store.require_file()
    store.migrate()
    return Tokens(store)
