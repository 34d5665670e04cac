"""Forms of administrators about users and attempts, and tables to download."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from envfleet.errors import InvalidArgument
from envfleet.service.database.exports import ATTEMPT_COLUMNS, BOARD_COLUMNS, write_csv
from envfleet.service.offers import find_offer
from envfleet.service.web.administration import LimitText, read_limit, show_administration
from envfleet.service.web.site import PageRoute, require_admin, require_reader, site_of

router = APIRouter(route_class=PageRoute)
_Id = Annotated[int, Path(ge=1, lt=2**31)]


@router.post("/admin/users")
async def create_users(request: Request, table: Annotated[str, Form(max_length=20_000)] = "") -> HTMLResponse:
    """Create users from CSV; shows their tokens this once."""
    visitor, service = await require_admin(request), site_of(request).service
    try:
        created = await service.in_thread(lambda: service.accounts.create_many(table))
    except InvalidArgument as error:
        return await show_administration(request, visitor, refusal=str(error), status=422)
    rows = ({"name": name, "token": token} for name, token in created)
    return await show_administration(request, visitor, created=write_csv(rows, ("name", "token")))


@router.get("/admin/users")
async def go_back(request: Request) -> RedirectResponse:
    """Leave a page that showed tokens, which cannot be shown again."""
    await require_admin(request)
    return RedirectResponse("/admin", 303)


@router.post("/participants/{user_id}/edit")
async def edit_user(
    user_id: _Id,
    request: Request,
    name: Annotated[str, Form(max_length=100)] = "",
    role: Annotated[Literal["participant", "admin"], Form()] = "participant",
    max_live_envs: LimitText = "",
    max_steps_per_day: LimitText = "",
) -> RedirectResponse:
    """Change name, role and limits."""
    await require_admin(request)
    accounts = site_of(request).service.accounts
    limits = {
        "max_live_envs": read_limit("live environments", max_live_envs),
        "max_steps_per_day": read_limit("steps a day", max_steps_per_day),
    }
    return await _change(request, user_id, lambda old: accounts.edit(old, new_name=name.strip(), role=role, **limits))


@router.post("/participants/{user_id}/disable")
async def disable_user(user_id: _Id, request: Request) -> RedirectResponse:
    """Refuse a user's tokens."""
    await require_admin(request)
    return await _change(request, user_id, site_of(request).service.accounts.disable)


@router.post("/participants/{user_id}/enable")
async def enable_user(user_id: _Id, request: Request) -> RedirectResponse:
    """Accept a user's tokens again."""
    await require_admin(request)
    return await _change(request, user_id, site_of(request).service.accounts.enable)


@router.post("/participants/{user_id}/delete")
async def delete_user(user_id: _Id, request: Request) -> RedirectResponse:
    """Delete a disabled user."""
    await require_admin(request)
    await _change(request, user_id, site_of(request).service.accounts.delete)
    return RedirectResponse("/admin", 303)


async def _change(request: Request, user_id: int, change: Callable[[str], None]) -> RedirectResponse:
    site = site_of(request)
    await site.service.in_thread(lambda: change(site.reading.user(user_id)["name"]))
    return RedirectResponse(f"/participants/{user_id}", 303)


@router.post("/participants/{user_id}/void")
async def void_attempt(
    user_id: _Id,
    request: Request,
    attempt: Annotated[int, Form(ge=1, lt=2**31)],
    reason: Annotated[str, Form(max_length=300)] = "",
) -> RedirectResponse:
    """Exclude an attempt from the scores; without a reason, count it again."""
    await require_admin(request)
    scores = site_of(request).service.scores

    def change(_: str) -> None:
        if reason.strip():
            scores.void(attempt, reason)
        else:
            scores.unvoid(attempt)

    return await _change(request, user_id, change)


# ---------------------------------------------------------------------- tables


@router.get("/scores.csv")
async def scores_csv(request: Request, env: Annotated[str, Query(max_length=200)]) -> Response:
    """Return the leaderboard of an environment."""
    await require_reader(request)
    service = site_of(request).service
    offer = find_offer(service.settings.offers, env)
    rows = await service.in_thread(lambda: service.scores.fresh_board(offer.env))
    return download(write_csv(rows, BOARD_COLUMNS), "scores.csv")


@router.get("/admin/attempts.csv")
async def attempts_csv(request: Request) -> Response:
    """Return all attempts of all users."""
    await require_admin(request)
    service = site_of(request).service
    rows = await service.in_thread(service.scores.all_attempts)
    return download(write_csv(rows, ATTEMPT_COLUMNS), "attempts.csv")


def download(text: str, name: str) -> Response:
    """Return CSV as a file that browsers save."""
    return Response(text, headers={"Content-Disposition": f'attachment; filename="{name}"'}, media_type="text/csv")
