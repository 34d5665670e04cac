"""`envfleet serve` and `envfleet token`: a service for many users, and their tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from envfleet.cli.competitions import competitions_app
from envfleet.cli.console import make_console, make_table, require
from envfleet.cli.courses import (
    DATABASE,
    MODULES,
    Database,
    attempts_app,
    back_up,
    moment,
    open_store,
    restore,
    users_app,
)
from envfleet.errors import InvalidArgument

if TYPE_CHECKING:
    from envfleet.service.users.auth import Tokens

serve_app = typer.Typer(name="serve", invoke_without_command=True)
token_app = typer.Typer(name="token", help="Make, list, revoke and rotate tokens of a service.", no_args_is_help=True)
for _app in (users_app, attempts_app, competitions_app):
    serve_app.add_typer(_app)
serve_app.command("backup")(back_up)
serve_app.command("restore")(restore)


@serve_app.callback()
def serve(  # noqa: PLR0913 (one parameter per option)
    context: typer.Context,
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
    infos: Annotated[
        list[str],
        typer.Option("--info", metavar="NAME", help="An info that participants receive, kernels aside; repeatable."),
    ] = [],  # noqa: B006 (typer copies it)
    attempts_per_day: Annotated[int, typer.Option(min=1, help="Ranked attempts of one user in one environment.")] = 5,
    has_private_scores: Annotated[
        bool, typer.Option("--no-public-scores", help="Show leaderboards to users with a token only.")
    ] = False,
    has_pictures: Annotated[
        bool, typer.Option("--pictures", help="Show participants pictures of environments that draw.")
    ] = False,
    metrics_token: Annotated[
        str | None,
        typer.Option(
            envvar="ENVFLEET_METRICS_TOKEN", help="Bearer token of /metrics, in addition to those of administrators."
        ),
    ] = None,
    has_access_log: Annotated[
        bool, typer.Option("--access-log", help="Write a line of JSON per request to standard output.")
    ] = False,
) -> None:
    """Host environments for many people; prints the address, and at the first start a token.

    The commands below manage a service's users, attempts, competitions and backups, while it runs or not.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    require("serve", *MODULES)
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
        "infos": tuple(infos),
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
        metrics_token=metrics_token,
    )
    run(settings, host=host, port=port, workers=workers, tell=typer.echo)


def _refuse_options(context: typer.Context) -> None:
    """Refuse options of `serve` itself before a command, which would be ignored."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InvalidArgument(
                f"options of `envfleet serve` do not apply to `{context.invoked_subcommand}`: write its own options "
                f"after its name, such as `envfleet serve {context.invoked_subcommand} … --database URL`"
            )


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
    """Make a token. It is shown this once. An existing user gets another one, and keeps those that it has."""
    limits = {"max_live_envs": max_live_envs, "max_steps_per_day": max_steps_per_day}
    with _tokens(database) as tokens:
        count = tokens.count(name)
        token = tokens.create(name, role=role, **limits)
    if count is not None:
        typer.echo(
            f"User {name!r} exists: this is another token for it, next to {count} that stay valid. To replace one: "
            "`envfleet token rotate ID`; to change the user: `envfleet serve users edit`.",
            err=True,
        )
    typer.echo(token)


@token_app.command("list")
def list_tokens(*, database: Database = DATABASE) -> None:
    """List tokens by their first characters."""
    headings = ("id", "user", "role", "token", "created", "revoked")
    table = make_table(*headings, texts=len(headings))
    with _tokens(database) as tokens:
        for row in tokens.list():
            times = moment(row["created_at"]), moment(row["revoked_at"])
            table.add_row(str(row["id"]), escape(row["user"]), row["role"], f"{row['prefix']}…", *times)
    make_console().print(table)


@token_app.command("revoke")
def revoke(
    token_id: Annotated[int, typer.Argument(metavar="ID", help="As `envfleet token list` shows it.")],
    *,
    database: Database = DATABASE,
) -> None:
    """Revoke a token."""
    with _tokens(database) as tokens:
        tokens.revoke(token_id)


@token_app.command("rotate")
def rotate(
    token_id: Annotated[int, typer.Argument(metavar="ID", help="As `envfleet token list` shows it.")],
    *,
    database: Database = DATABASE,
) -> None:
    """Revoke a token and make another for the same user. It is shown this once."""
    with _tokens(database) as tokens:
        typer.echo(tokens.rotate(token_id))


@contextlib.contextmanager
def _tokens(database: str) -> Iterator[Tokens]:
    with open_store(database) as store:
        from envfleet.service.users.auth import Tokens

        yield Tokens(store)
