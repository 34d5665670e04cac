"""`envfleet status`, `close` and `submit`: fleets, quota and scores of a user at a service, and ranked attempts."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape

import envfleet
from envfleet.cli.console import make_console, make_table, progress_bar, require
from envfleet.cli.options import EnvArgs, Trust
from envfleet.cli.parsing import parse_env_kwargs
from envfleet.errors import EnvfleetError, InvalidArgument, ServiceRefused, WireError
from envfleet.fleet.evaluating import read_policy

if TYPE_CHECKING:
    from envfleet.remote.service_link import ServiceLink

_FLEET_ID = re.compile(r"[0-9a-f]{24}")
_NO_SCORES = "No scores yet; those of a competition are shown when that closes."
_MOST_FLEETS = 12  # that are asked for their episodes
_NEIGHBORS = 5  # lines of a leaderboard

_Url = Annotated[str, typer.Argument(metavar="URL", help="Of the service, such as http://host:8001.")]
_Token = Annotated[str | None, typer.Option(envvar="ENVFLEET_TOKEN", help="Else ENVFLEET_TOKEN of a file .env.")]


@contextlib.contextmanager
def _linked(url: str, token: str | None) -> Iterator[tuple[ServiceLink, str]]:
    """Open a link to a service; yield it and the token."""
    require("client", "envfleet.remote.service_link", "envfleet.user_settings")
    from envfleet.remote.service_link import ServiceLink
    from envfleet.user_settings import find_token

    secret = find_token(token, "--token TOKEN")
    with contextlib.closing(ServiceLink(url, secret, patience_s=10.0)) as link:
        yield link, secret


def status(
    url: _Url,
    *,
    token: _Token = None,
    watch: Annotated[
        float | None, typer.Option(min=0.5, metavar="SECONDS", help="Ask again and again, until Ctrl-C.")
    ] = None,
) -> None:
    """Show my fleets, my scores and my quota at a service."""
    with _linked(url, token) as (link, _):
        if watch is None:
            make_console().print(_dashboard(link))
            return
        with Live(_dashboard(link), console=make_console(), auto_refresh=False) as live:
            while True:
                time.sleep(watch)
                live.update(_dashboard(link), refresh=True)


def close(
    url: _Url,
    fleets: Annotated[list[str], typer.Argument(metavar="ID...", help="Of fleets, as `envfleet status` shows them.")],
    *,
    token: _Token = None,
) -> None:
    """Close fleets of mine at a service, such as those of a client that was killed; their episodes are abandoned."""
    with _linked(url, token) as (link, _):
        from envfleet.remote.codec import pack

        for fleet in fleets:
            if not _FLEET_ID.fullmatch(fleet):
                raise InvalidArgument(
                    f"{fleet!r} is not the id of a fleet: pass one as `envfleet status {url}` shows it"
                )
            link.post(f"/fleets/{fleet}/close", pack({"key": secrets.token_bytes(16)}))


def submit(
    url: _Url,
    policy: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_POLICY", help="Folder of a run, checkpoint, or module:function of observations."
        ),
    ],
    *,
    env: Annotated[str, typer.Option("--env", "-e", metavar="ENV", help="Environment, as the service names it.")],
    token: _Token = None,
    num_envs: Annotated[
        int | None, typer.Option("--num-envs", "-n", min=1, help="Episodes at a time.", show_default="at most 64")
    ] = None,
    env_args: EnvArgs = [],  # noqa: B006 (typer copies it)
    trust: Trust = False,
) -> None:
    """Play one ranked attempt with a policy; a trial step in training comes first, as an attempt counts at once."""
    options = parse_env_kwargs(env_args)
    with _linked(url, token) as (link, secret), progress_bar(f"asking {url}") as show:
        offers = link.get("/envs")["envs"]
        name = env if env in offers else f"envfleet/{env}"
        if name not in offers:
            raise InvalidArgument(f"--env {env} is not offered at {url}: pass one of {', '.join(offers)}")
        most = min(int(offers[name]["ranked_episodes"]), int(offers[name]["max_num_envs"]))
        count = min(num_envs or 64, most)
        show("trial step", 0.0)
        act = _load_policy(policy, count, trust=trust)
        with envfleet.connect(url, name, count, token=secret, **options) as trial:
            trial.step(read_policy(act)(trial.reset()[0]))
        with envfleet.connect(url, name, count, token=secret, mode="ranked", **options) as fleet:
            try:
                returns = fleet.evaluate(act, progress=show)
            except BaseException:  # Ctrl-C, too
                typer.echo(
                    "The attempt had begun, so it counts as one of today's, although it is incomplete.", err=True
                )
                raise
        engine: Any = fleet.engine  # the remote one
        [fleet_id] = engine.fleet_ids
        last = next(each for each in link.get("/attempts")["attempts"] if each["fleet_id"] == fleet_id)
        rows = link.send("GET", f"/scores/{name}").json()["scores"]
        user = link.get("/me")["user"]
    place = next((row for row in rows if row["user"] == user), None)
    typer.echo(f"Attempt {last['id']}: score {last['score']:,.2f}, the mean of {len(returns)} episodes.")
    if place is not None:  # the board may be a second old
        typer.echo(f"Place {place['rank']} of {len(rows)} with {place['score']:,.2f}.")


def _load_policy(name: str, num_envs: int, *, trust: bool) -> Any:
    """Return the policy of a checkpoint or run folder, or the function that `module:function` names."""
    if ":" in name and not Path(name).exists():
        from envfleet.registry import find_own

        return find_own(name, "RUN_OR_POLICY")
    from envfleet.agents import load_agent

    return load_agent(name, num_envs=num_envs, trust=trust)


def _dashboard(link: ServiceLink) -> RenderableType:
    try:
        me, fleets, envs = link.get("/me"), link.get("/fleets")["fleets"], link.get("/envs")["envs"]
        user = str(me["user"])
        boards = {env: link.send("GET", f"/scores/{env}").json()["scores"] for env in envs}
        shown = [_board(env, rows, user) for env, rows in boards.items() if rows]
        return Group(
            f"[bold]{escape(user)}[/bold], {escape(str(me['role']))}, at {escape(link.url)}\n",
            _quota(me["quota"]),
            "",
            _fleets(link, fleets),
            *(part for board in shown or [f"[dim]{_NO_SCORES}[/dim]"] for part in ("", board)),
        )
    except EnvfleetError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise WireError(f"{link.url} answered something else than expected: {type(error).__name__}: {error}") from error


def _quota(quota: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    table = make_table("quota", "used", "limit")
    for name, each in quota.items():
        limit = "none" if each["limit"] is None else f"{each['limit']:,.0f}"
        table.add_row(name.replace("_", " "), f"{each['used']:,.0f}", limit)
    return table


def _fleets(link: ServiceLink, fleets: Sequence[Mapping[str, Any]]) -> RenderableType:
    if not fleets:
        return "[dim]No fleets are open.[/dim]"
    table = make_table("fleet", "environment", "mode", "envs", "running", "return", "steps", texts=3)
    table.columns[0].no_wrap = True  # so that the id can be copied
    for place, fleet in enumerate(fleets):
        episodes = _episodes(link, fleet) if place < _MOST_FLEETS else ()
        table.add_row(fleet["fleet"], fleet["env"], fleet["mode"], f"{fleet['num_envs']:,}", *episodes)
    return table


def _episodes(link: ServiceLink, fleet: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how many episodes of a fleet run, their mean return and mean length so far."""
    try:
        described = link.get(f"/fleets/{fleet['fleet']}")
    except ServiceRefused:  # it was closed meanwhile, or is of the episode protocol and cannot be described
        return ()
    runs = np.full(fleet["num_envs"], bool(described["seq"]))
    runs[described["ended"]] = False
    means = (f"{described[name][runs].mean():,.1f}" if runs.any() else "" for name in ("returns", "lengths"))
    return f"{runs.sum():,}", *means


def _board(env: str, rows: Sequence[Mapping[str, Any]], user: str) -> RenderableType:
    """Return a leaderboard, shortened to the lines around the user."""
    place = next((k for k, row in enumerate(rows) if row["user"] == user), 0)
    first = max(0, min(place - _NEIGHBORS // 2, len(rows) - _NEIGHBORS))
    table = make_table(f"{env}: best attempts", "rank", "score", "attempts")
    for row in rows[first : first + _NEIGHBORS]:
        figures = (str(row["rank"]), f"{row['score']:,.1f}", f"{row['attempts']:,}")
        table.add_row(escape(str(row["user"])), *figures, style="bold" if row["user"] == user else None)
    return table
