"""Commands below `envfleet serve` to run a course: users and attempts of a service."""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from envfleet.cli.console import make_console, make_table, progress_bar, require
from envfleet.errors import InvalidArgument

if TYPE_CHECKING:
    from envfleet.service.database.scores import Scores
    from envfleet.service.database.store import Store
    from envfleet.service.users.accounts import Accounts

DATABASE = "sqlite:///envfleet.db"
MODULES = ("alembic", "fastapi", "sqlalchemy", "uvicorn")
Database = Annotated[
    str,
    typer.Option(
        metavar="URL", envvar="ENVFLEET_DATABASE", help="Where all is kept: sqlite:///FILE or postgresql+psycopg://…"
    ),
]
_User = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]
_Attempt = Annotated[int, typer.Argument(metavar="ID", help="As `envfleet serve attempts list` shows it.")]
_Env = Annotated[str | None, typer.Option("--env", "-e", metavar="ENV", help="Only attempts in this environment.")]
_Limit = Annotated[str | None, typer.Option(metavar="N", help="New limit; `none` for the service's.")]
users_app = typer.Typer(name="users", help="Create, edit, disable and delete users.", no_args_is_help=True)
attempts_app = typer.Typer(name="attempts", help="List, export and void ranked attempts.", no_args_is_help=True)


@contextlib.contextmanager
def open_store(database: str) -> Iterator[Store]:
    """Open the database of a service that exists.

    Raises:
        InvalidArgument: It does not exist or cannot be used.
    """
    require("serve", *MODULES)
    from envfleet.service.database.store import Store

    with contextlib.closing(Store(database)) as store:
        store.require_file()
        store.migrate()
        yield store


@contextlib.contextmanager
def _accounts(database: str) -> Iterator[Accounts]:
    with open_store(database) as store:
        from envfleet.service.users.accounts import Accounts
        from envfleet.service.users.auth import Tokens

        yield Accounts(store, Tokens(store))


@contextlib.contextmanager
def _scores(database: str) -> Iterator[Scores]:
    with open_store(database) as store:
        from envfleet.service.database.scores import Scores

        yield Scores(store)


def moment(at: float | None) -> str:
    """Return a time for people, UTC; empty for none."""
    return "" if at is None else dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


# ---------------------------------------------------------------------- users


@users_app.command("create")
def create_users(
    file: Annotated[
        typer.FileText,
        typer.Argument(
            metavar="FILE", help="CSV with the header name[,role][,max_live_envs][,max_steps_per_day]; - for input."
        ),
    ],
    *,
    database: Database = DATABASE,
) -> None:
    """Create the users of a CSV file, all or none; prints a CSV of names and tokens, which are shown this once."""
    from envfleet.service.database.exports import write_csv

    with _accounts(database) as accounts:
        created = accounts.create_many(_read(file))
    rows = ({"name": name, "token": token} for name, token in created)
    sys.stdout.write(write_csv(rows, ("name", "token")))


def _read(file: typer.FileText) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{file.name} is not UTF-8 ({error.reason}): save it as CSV in UTF-8") from error


@users_app.command("list")
def list_users(*, database: Database = DATABASE) -> None:
    """List users with their limits."""
    headings = ("id", "user", "role", "live", "steps a day", "created", "disabled")
    table = make_table(*headings, texts=len(headings))
    with _accounts(database) as accounts:
        for row in accounts.rows():
            limits = ("" if row[name] is None else str(row[name]) for name in ("max_live_envs", "max_steps_per_day"))
            times = (moment(row["created_at"]), moment(row["disabled_at"]))
            table.add_row(str(row["id"]), escape(row["name"]), row["role"], *limits, *times)
    make_console().print(table)


@users_app.command("edit")
def edit_user(
    name: _User,
    *,
    new_name: Annotated[str | None, typer.Option("--name", metavar="NEW", help="New name.")] = None,
    role: Annotated[str | None, typer.Option(metavar="ROLE", help="participant or admin.")] = None,
    max_live_envs: _Limit = None,
    max_steps_per_day: _Limit = None,
    database: Database = DATABASE,
) -> None:
    """Rename a user, or change its role or limits; tokens and scores stay."""
    limits = {"max_live_envs": max_live_envs, "max_steps_per_day": max_steps_per_day}
    changes = {field: _read_limit(field, text) for field, text in limits.items() if text is not None}
    with _accounts(database) as accounts:
        accounts.edit(name, new_name=new_name, role=role, **changes)


def _read_limit(field: str, text: str) -> int | None:
    if text == "none":
        return None
    if not (text.isascii() and text.isdigit() and int(text) < 2**31):
        raise InvalidArgument(f"--{field.replace('_', '-')} {text}: pass a number below {2**31:,}, or none")
    return int(text)


@users_app.command("disable")
def disable_user(name: _User, *, database: Database = DATABASE) -> None:
    """Refuse all tokens of a user; its scores stay, and its fleets are closed once they are idle."""
    with _accounts(database) as accounts:
        accounts.disable(name)


@users_app.command("enable")
def enable_user(name: _User, *, database: Database = DATABASE) -> None:
    """Accept the tokens of a disabled user again."""
    with _accounts(database) as accounts:
        accounts.enable(name)


@users_app.command("delete")
def delete_user(name: _User, *, database: Database = DATABASE) -> None:
    """Delete a disabled user with all its tokens, fleets, episodes, attempts and scores, for good."""
    with _accounts(database) as accounts:
        accounts.delete(name)


# ---------------------------------------------------------------------- attempts


@attempts_app.command("list")
def list_attempts(
    *,
    env: _Env = None,
    has_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with all columns.")] = False,
    database: Database = DATABASE,
) -> None:
    """List ranked attempts, those that are void too."""
    from envfleet.service.database.exports import ATTEMPT_COLUMNS, write_csv

    with _scores(database) as scores:
        rows = scores.all_attempts(None if env is None else _find_env(scores, env))
    if has_csv:
        sys.stdout.write(write_csv(rows, ATTEMPT_COLUMNS))
        return
    headings = ("id", "user", "environment", "started, UTC", "episodes", "score", "void")
    table = make_table(*headings, texts=len(headings))
    for row in rows:
        score = "" if row["score"] is None else f"{row['score']:.4g}"
        texts = (escape(row["user"]), escape(row["env"]), moment(row["started_at"]))
        table.add_row(str(row["id"]), *texts, f"{row['ended']}/{row['episodes']}", score, _escape(row["void_reason"]))
    make_console().print(table)


@attempts_app.command("scores")
def print_scores(
    env: Annotated[str, typer.Argument(metavar="ENV", help="Environment.")],
    *,
    database: Database = DATABASE,
) -> None:
    """Print the leaderboard of an environment as CSV."""
    from envfleet.service.database.exports import BOARD_COLUMNS, write_csv

    with _scores(database) as scores:
        sys.stdout.write(write_csv(scores.board(_find_env(scores, env)), BOARD_COLUMNS))


def _find_env(scores: Scores, env: str) -> str:
    """Return the whole id of an environment with attempts; a wrong one would give an empty table."""
    known = sorted({row["env"] for row in scores.all_attempts()})
    for whole in (env, f"envfleet/{env}"):
        if whole in known:
            return whole
    raise InvalidArgument(f"environment {env!r} has no attempts; those with attempts: {', '.join(known) or 'none'}")


@attempts_app.command("void")
def void_attempt(
    attempt_id: _Attempt,
    reason: Annotated[str, typer.Argument(metavar="REASON", help="Reason, which is shown to the user.")],
    *,
    database: Database = DATABASE,
) -> None:
    """Exclude an attempt from the scores; it stays listed as void, with the reason."""
    with _scores(database) as scores:
        scores.void(attempt_id, reason)


@attempts_app.command("unvoid")
def unvoid_attempt(attempt_id: _Attempt, *, database: Database = DATABASE) -> None:
    """Count a void attempt again."""
    with _scores(database) as scores:
        scores.unvoid(attempt_id)


def _escape(text: Any) -> str:
    return "" if text is None else escape(text)


# ---------------------------------------------------------------------- backups


def back_up(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")], *, database: Database = DATABASE
) -> None:
    """Copy the database to a new file, even while the service runs; everything committed is included."""
    with open_store(database) as store:
        from envfleet.service.database.backup import back_up as copy

        with progress_bar(str(file)):
            size_bytes = copy(store, file)
    typer.echo(f"{file}: {size_bytes / 2**20:,.1f} MiB")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As `envfleet serve backup` made it.")],
    *,
    database: Database = DATABASE,
) -> None:
    """Restore a backup to a database that does not exist yet."""
    require("serve", *MODULES)
    from envfleet.service.database.backup import restore as put_back
    from envfleet.service.database.store import Store

    with contextlib.closing(Store(database)) as store, progress_bar(str(file)):
        put_back(file, store)
        store.migrate()
