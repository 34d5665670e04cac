"""`envfleet status`: what a service says of me."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from envfleet.cli.console import make_console, readable_errors
from envfleet.errors import MissingDependency

if TYPE_CHECKING:
    from rich.console import RenderableType

    from envfleet.cli.account import Account
    from envfleet.remote.service_link import ServiceLink

_NEIGHBOURS = 5  # lines of a leaderboard


def register(app: typer.Typer) -> None:
    """Give the command line this command."""
    app.command()(status)


def status(
    url: Annotated[str, typer.Argument(metavar="URL", help="Of the service, such as http://host:8001.")],
    *,
    token: Annotated[
        str | None,
        typer.Option(envvar="ENVFLEET_TOKEN", help="Else ENVFLEET_TOKEN of a file .env.", show_default=False),
    ] = None,
    watch: Annotated[
        float | None, typer.Option(min=0.5, metavar="SECONDS", help="Ask again and again, until Ctrl-C.")
    ] = None,
) -> None:
    """Show my fleets, my scores and my quota at a service."""
    with readable_errors():
        try:
            from envfleet.remote.service_link import ServiceLink
            from envfleet.user_settings import find_token
        except ModuleNotFoundError as error:
            raise MissingDependency(f"status needs {error.name}: pip install 'envfleet[client]'") from error
        link = ServiceLink(url, find_token(token), patience_s=10.0)
        try:
            if watch is None:
                make_console().print(_dashboard(link))
            else:
                _follow(link, watch)
        finally:
            link.close()


def _follow(link: ServiceLink, every_s: float) -> None:
    from rich.live import Live

    with Live(_dashboard(link), console=make_console(), screen=False, auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(_dashboard(link), refresh=True)


def _dashboard(link: ServiceLink) -> RenderableType:
    from rich.console import Group
    from rich.markup import escape
    from rich.text import Text

    from envfleet.cli.account import read_account

    account = read_account(link)
    title = Text.from_markup(f"[bold]{escape(account.user)}[/bold], {account.role}, at {escape(link.url)}")
    return Group(title, "", _quota(account), "", _fleets(account), *_boards(account))


def _quota(account: Account) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table("quota", box=None, pad_edge=False)
    for name in ("used", "limit"):
        table.add_column(name, justify="right")
    table.add_column("")
    for name, (used, limit) in account.quota.items():
        bar = "" if not limit else ProgressBar(total=limit, completed=min(used, limit), width=24)
        table.add_row(name.replace("_", " "), f"{used:,.0f}", "none" if limit is None else f"{limit:,.0f}", bar)
    return table


def _fleets(account: Account) -> RenderableType:
    from rich.table import Table

    if not account.fleets:
        return "[dim]No fleets are open.[/dim]"
    table = Table("fleet", "environment", "mode", box=None, pad_edge=False)
    for name in ("engines" if _is_turbofan(account) else "sub-envs", "running", "return so far", "steps so far"):
        table.add_column(name, justify="right")
    for fleet in account.fleets:
        figures = (fleet.mean_return, fleet.mean_length)
        table.add_row(
            fleet.fleet_id[:8],
            fleet.env,
            fleet.mode,
            f"{fleet.num_envs:,}",
            "" if fleet.running is None else f"{fleet.running:,}",
            *("" if figure is None else f"{figure:,.1f}" for figure in figures),
        )
    return table


def _is_turbofan(account: Account) -> bool:
    return all("Turbofan" in fleet.env for fleet in account.fleets)


def _boards(account: Account) -> list[RenderableType]:
    """Return the leaderboards, cut to the lines around one's own."""
    from rich.markup import escape
    from rich.table import Table

    shown: list[RenderableType] = []
    for env, rows in account.scores.items():
        if not rows:
            continue
        mine = next((k for k, row in enumerate(rows) if row["user"] == account.user), 0)
        first = max(0, min(mine - _NEIGHBOURS // 2, len(rows) - _NEIGHBOURS))
        table = Table("rank", f"{env}: ranked episodes", box=None, pad_edge=False)
        for name in ("score", "best", "episodes"):
            table.add_column(name, justify="right")
        for row in rows[first : first + _NEIGHBOURS]:
            style = "bold" if row["user"] == account.user else None
            figures = (f"{row['score']:,.1f}", f"{row['best']:,.1f}", f"{row['episodes']:,}")
            table.add_row(str(row["rank"]), escape(str(row["user"])), *figures, style=style)
        shown += ["", table]
    return shown or ["", "[dim]No ranked episodes yet.[/dim]"]
