"""The leaderboard, and the part of it that a page asks for again and again."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse

from envfleet.service.offers import find_offer
from envfleet.service.users.auth import Identity
from envfleet.service.web.site import PageRoute, render, require_reader, show, show_changes, site_of

router = APIRouter(route_class=PageRoute)
_Env = Annotated[str | None, Query(max_length=200)]


@router.get("/")
async def leaderboard(request: Request, env: _Env = None) -> HTMLResponse:
    """Return the leaderboard of an environment."""
    visitor, table = await _read(request, env)
    offers = site_of(request).service.settings.offers
    return show("leaderboard.html", visitor, offers=offers, **table)


@router.get("/board")
async def board(request: Request, env: _Env = None) -> Response:
    """Its table alone; answers 304 while nothing has changed."""
    visitor, table = await _read(request, env)
    return show_changes(request, render("board.html", visitor=visitor, **table))


async def _read(request: Request, env: str | None) -> tuple[Identity | None, dict[str, Any]]:
    site = site_of(request)
    settings = site.service.settings
    visitor = await require_reader(request)
    offer = settings.offers[0] if env is None else find_offer(settings.offers, env)
    rows = await site.service.in_thread(lambda: site.service.scores.fresh_board(offer.env))
    return visitor, {"env": offer.env, "rows": rows, "offer": offer, "attempts_per_day": settings.attempts_per_day}
