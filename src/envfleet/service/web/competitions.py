"""The pages of competitions: what they are about, their scoreboards, and taking part."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Form, Path, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from envfleet.errors import InvalidArgument
from envfleet.service.database.exports import write_csv
from envfleet.service.users.auth import Identity
from envfleet.service.users.competitions import CSV_COLUMNS
from envfleet.service.web.site import (
    PageRoute,
    render,
    require_admin,
    require_reader,
    require_visitor,
    show,
    show_changes,
    site_of,
)
from envfleet.service.web.users import download

router = APIRouter(route_class=PageRoute)
_Id = Annotated[int, Path(ge=1, lt=2**31)]
_Text = Annotated[str, Form(max_length=100)]


@router.get("/competitions")
async def competitions(request: Request) -> HTMLResponse:
    """Return all competitions."""
    visitor, service = await require_reader(request), site_of(request).service
    rows = await service.in_thread(service.competitions.rows)
    return show("competitions.html", visitor, rows=rows, now=time.time())


@router.get("/competitions/{competition_id}")
async def competition(competition_id: _Id, request: Request) -> HTMLResponse:
    """Return a competition with its scoreboards."""
    return await _show(request, await require_reader(request), competition_id)


@router.get("/competitions/{competition_id}/board")
async def board(competition_id: _Id, request: Request) -> Response:
    """Return its public scoreboard alone; answers 304 while nothing has changed."""
    visitor = await require_reader(request)
    values = await _read(request, visitor, competition_id)
    return show_changes(request, render("board.html", visitor=visitor, rows=values["public"], **values))


@router.get("/competitions/{competition_id}/scores.csv")
async def scores_csv(competition_id: _Id, request: Request) -> Response:
    """Return both scores of all teams, the final ones too before it has closed."""
    await require_admin(request)
    service = site_of(request).service
    rows = await service.in_thread(lambda: service.competitions.scores(service.competitions.get(competition_id)))
    return download(write_csv(rows, CSV_COLUMNS), "competition.csv")


@router.get("/competitions/{competition_id}/join")
async def go_back(competition_id: _Id, request: Request) -> RedirectResponse:
    """Leave a page that showed a code, which cannot be shown again."""
    await require_reader(request)
    return RedirectResponse(f"/competitions/{competition_id}", 303)


@router.post("/competitions/{competition_id}/join")
async def join(competition_id: _Id, request: Request, code: _Text = "", team: _Text = "") -> HTMLResponse:
    """Take part; shows the code of a new team this once."""
    visitor, service = await require_visitor(request), site_of(request).service

    def work() -> str | None:
        competition = service.competitions.get(competition_id)
        return service.competitions.join(competition, visitor.user_id, code=code, team=team)

    try:
        new_code = await service.in_thread(work)
    except InvalidArgument as error:
        return await _show(request, visitor, competition_id, status=422, refusal=str(error))
    return await _show(request, visitor, competition_id, code=new_code)


async def _show(
    request: Request,
    visitor: Identity | None,
    competition_id: int,
    *,
    status: int = 200,
    code: str | None = None,
    refusal: str = "",
) -> HTMLResponse:
    values = await _read(request, visitor, competition_id)
    return show("competition.html", visitor, status=status, code=code, refusal=refusal, now=time.time(), **values)


async def _read(request: Request, visitor: Identity | None, competition_id: int) -> dict[str, Any]:
    service = site_of(request).service

    def work() -> dict[str, Any]:
        row = service.competitions.get(competition_id)
        team = None if visitor is None else service.competitions.team_of(competition_id, visitor.user_id)
        return {
            "row": row,
            "env": row["env"],
            "team": team,
            "my_team": None if team is None else team["team_id"],
            "public": service.competitions.public_board(row),
            "final": service.competitions.final_board(row),
        }

    return await service.in_thread(work)
