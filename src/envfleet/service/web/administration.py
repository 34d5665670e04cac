"""The page of administrators: users and their tokens, load, environments, the queue."""

from __future__ import annotations

import os
import resource
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Path, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from envfleet.errors import InvalidArgument
from envfleet.service.users.auth import Identity
from envfleet.service.web.site import PageRoute, require_admin, show, site_of

router = APIRouter(route_class=PageRoute)
_TokenId = Annotated[int, Path(ge=1, lt=2**31)]
LimitText = Annotated[str, Form(max_length=20)]


@router.get("/admin")
async def administration(request: Request) -> HTMLResponse:
    """Return the page of administrators."""
    return await show_administration(request, await require_admin(request))


@router.get("/admin/tokens")
@router.get("/admin/tokens/{token_id}/rotate")
async def go_back(request: Request) -> RedirectResponse:
    """Leave a page that showed a token, which cannot be shown again."""
    await require_admin(request)
    return RedirectResponse("/admin", 303)


@router.post("/admin/tokens")
async def create_token(
    request: Request,
    name: Annotated[str, Form(max_length=100)] = "",
    role: Annotated[Literal["participant", "admin"], Form()] = "participant",
    max_live_envs: LimitText = "",
    max_steps_per_day: LimitText = "",
) -> HTMLResponse:
    """Make a token, and its user if need be; shows it this once."""
    visitor, tokens = await require_admin(request), site_of(request).service.tokens
    try:
        live, steps = read_limit("live environments", max_live_envs), read_limit("steps a day", max_steps_per_day)
        earlier, token = await site_of(request).service.in_thread(
            lambda: (
                tokens.count(name.strip()),
                tokens.create(name.strip(), role=role, max_live_envs=live, max_steps_per_day=steps),
            )
        )
    except InvalidArgument as error:
        return await show_administration(request, visitor, refusal=str(error), status=422)
    return await show_administration(request, visitor, token=token, token_of=name.strip(), num_earlier=earlier)


@router.post("/admin/tokens/{token_id}/rotate")
async def rotate_token(token_id: _TokenId, request: Request) -> HTMLResponse:
    """Revoke a token and make another for the same user; shows it this once."""
    visitor, service = await require_admin(request), site_of(request).service

    def rotate() -> tuple[str, str]:
        token = service.tokens.rotate(token_id)
        return token, service.tokens.check(token).name

    try:
        token, name = await service.in_thread(rotate)
    except InvalidArgument as error:
        return await show_administration(request, visitor, refusal=str(error), status=422)
    return await show_administration(request, visitor, token=token, token_of=name)


@router.post("/admin/tokens/{token_id}/revoke")
async def revoke_token(token_id: _TokenId, request: Request) -> RedirectResponse:
    """Revoke a token."""
    await require_admin(request)
    service = site_of(request).service
    await service.in_thread(lambda: service.tokens.revoke(token_id))
    return RedirectResponse("/admin", 303)


def read_limit(name: str, text: str) -> int | None:
    """Read a limit of a form; `None` for the service's.

    Raises:
        InvalidArgument: The text is not a number.
    """
    text = text.strip().replace(",", "").replace("_", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) < 2**31):
        raise InvalidArgument(
            f"{name}: {text!r} is not a whole number below {2**31:,}; leave it empty for the service's limit"
        )
    return int(text)


async def show_administration(request: Request, visitor: Identity, *, status: int = 200, **news: Any) -> HTMLResponse:
    """Return the page of administrators.

    Args:
        request: The request.
        visitor: The administrator.
        status: HTTP status.
        news: Result of a form: `token`, `token_of` and `num_earlier`, `created` (CSV of new users), or `refusal`.
    """
    site = site_of(request)
    service = site.service

    def read() -> dict[str, Any]:
        return {"users": site.reading.users(), "tokens": service.tokens.list(), "envs": site.reading.envs()}

    return show(
        "administration.html",
        visitor,
        status=status,
        **{"token": "", "created": "", "refusal": "", "num_earlier": None, **news},
        settings=service.settings,
        num_held=service.fleets.num_held,
        num_envs=service.fleets.num_envs,
        num_waiting=service.num_waiting,
        num_cores=os.cpu_count() or 1,
        load=os.getloadavg()[0],
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0,
        **await service.in_thread(read),
    )
