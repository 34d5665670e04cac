"""`envfleet serve competitions`: commands to run a competition."""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from envfleet.cli.console import make_console, make_table
from envfleet.cli.courses import DATABASE, Database, moment, open_store
from envfleet.errors import InvalidArgument

if TYPE_CHECKING:
    from envfleet.service.users.competitions import Competitions

competitions_app = typer.Typer(name="competitions", help="Run competitions.", no_args_is_help=True)
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the competition.")]
_Baseline = Annotated[
    str | None, typer.Option(metavar="NAME=SCORE", help="A row of the scoreboards without a rank, to compare with.")
]
_Text = Annotated[
    Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help="What its page says, plain text.")
]
_TIME = "2026-12-01T09:00"
_DATE_CHARACTERS = 10


@contextlib.contextmanager
def _competitions(database: str) -> Iterator[Competitions]:
    with open_store(database) as store:
        from envfleet.service.users.competitions import Competitions

        yield Competitions(store)


@competitions_app.command("create")
def create(  # noqa: PLR0913 (one parameter per option)
    name: _Name,
    *,
    env: Annotated[str, typer.Option("--env", "-e", metavar="ENV", help="Environment, as the service names it.")],
    opens: Annotated[str, typer.Option(metavar="TIME", help=f"Opening time, UTC, such as {_TIME}.")],
    closes: Annotated[str, typer.Option(metavar="TIME", help="Closing time, UTC, with the time of day.")],
    text: _Text = None,
    baseline: _Baseline = None,
    max_team_size: Annotated[int, typer.Option(min=1, max=100, help="Members of a team; 1 for no teams.")] = 1,
    has_code: Annotated[bool, typer.Option("--invite", help="Only those with an invitation code take part.")] = False,
    database: Database = DATABASE,
) -> None:
    """Create a competition; prints its invitation code, which is shown this once."""
    values = _read_values(opens, closes, text, baseline)
    with _competitions(database) as competitions:
        from envfleet.service.offers import find_id

        values |= {"env": find_id(env), "max_team_size": max_team_size}
        code = competitions.create(name, has_code=has_code, **values)
    if code is not None:
        typer.echo(code)


@competitions_app.command("edit")
def edit(
    name: _Name,
    *,
    opens: Annotated[str | None, typer.Option(metavar="TIME", help="New opening time, UTC.")] = None,
    closes: Annotated[str | None, typer.Option(metavar="TIME", help="New closing time, UTC.")] = None,
    text: _Text = None,
    baseline: _Baseline = None,
    max_team_size: Annotated[int | None, typer.Option(min=1, max=100, help="Members of a team.")] = None,
    database: Database = DATABASE,
) -> None:
    """Change a competition that has not closed."""
    values = _read_values(opens, closes, text, baseline)
    if max_team_size is not None:
        values["max_team_size"] = max_team_size
    with _competitions(database) as competitions:
        competitions.edit(name, **values)


def _read_values(opens: str | None, closes: str | None, text: Path | None, baseline: str | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field, option in (("opens_at", opens), ("closes_at", closes)):
        if option is not None:
            values[field] = _read_time(field, option)
    if text is not None:
        try:
            values["text"] = text.read_text(encoding="utf-8").strip()
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"{text} is not UTF-8 ({error.reason}): save it as UTF-8") from error
    if baseline is not None:
        label, _, number = baseline.rpartition("=")
        try:
            values |= {"baseline_name": label.strip(), "baseline_score": float(number)}
        except ValueError as error:
            raise InvalidArgument(f"--baseline {baseline}: pass NAME=SCORE, with a number") from error
    return values


def _read_time(field: str, text: str) -> float:
    """Return seconds since 1970 of a time, UTC unless it says otherwise."""
    option = field.removesuffix("_at")
    try:
        at = dt.datetime.fromisoformat(text)
        seconds = (at if at.tzinfo is not None else at.replace(tzinfo=dt.UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"--{option} {text}: pass a date or a time, UTC, such as {_TIME}") from error
    if field == "closes_at" and len(text) <= _DATE_CHARACTERS:
        raise InvalidArgument(f"--{option} {text} would close it as this day begins: pass a time, UTC, such as {_TIME}")
    return seconds


@competitions_app.command("list")
def list_competitions(*, database: Database = DATABASE) -> None:
    """List competitions."""
    headings = ("name", "environment", "opens, UTC", "closes, UTC", "members", "by invitation")
    table = make_table(*headings, texts=len(headings))
    with _competitions(database) as competitions:
        for row in competitions.rows():
            times = moment(row["opens_at"]), moment(row["closes_at"])
            count = len(competitions.members(row["id"]))
            is_closed = "yes" if row["code_digest"] is not None else "no"
            table.add_row(escape(row["name"]), escape(row["env"]), *times, str(count), is_closed)
    make_console().print(table)


@competitions_app.command("scores")
def scores(name: _Name, *, database: Database = DATABASE) -> None:
    """Print the public and the final scores of all teams as CSV, the final ones too before it has closed."""
    with _competitions(database) as competitions:
        from envfleet.service.database.exports import write_csv
        from envfleet.service.users.competitions import CSV_COLUMNS

        sys.stdout.write(write_csv(competitions.scores(competitions.find(name)), CSV_COLUMNS))


@competitions_app.command("members")
def members(name: _Name, *, database: Database = DATABASE) -> None:
    """Print the members as CSV."""
    with _competitions(database) as competitions:
        from envfleet.service.database.exports import write_csv

        rows = competitions.members(competitions.find(name)["id"])
        sys.stdout.write(write_csv(rows, ("user", "team", "joined_at")))


@competitions_app.command("invite")
def invite(name: _Name, *, database: Database = DATABASE) -> None:
    """Draw a new invitation code, which is shown this once; an earlier one is worthless then."""
    with _competitions(database) as competitions:
        typer.echo(competitions.invite(name))


@competitions_app.command("remove")
def remove(
    name: _Name,
    user: Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")],
    *,
    database: Database = DATABASE,
) -> None:
    """Remove a user from a competition; attempts stay, and the user may join again."""
    with _competitions(database) as competitions:
        competitions.remove(name, user)


@competitions_app.command("delete")
def delete(name: _Name, *, database: Database = DATABASE) -> None:
    """Delete a competition with its teams; attempts stay."""
    with _competitions(database) as competitions:
        competitions.delete(name)
