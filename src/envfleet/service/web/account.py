"""Signing in, a participant's own page, and replays of episodes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from envfleet.errors import InvalidArgument
from envfleet.registry import find_hosting
from envfleet.service.refusals import Busy, Closed, Disabled, EnvFailed, Unauthorized
from envfleet.service.users.auth import Identity
from envfleet.service.web.drawings import Pictures, draw_episode, draw_score
from envfleet.service.web.site import (
    COOKIE,
    PageRoute,
    Site,
    path_after_sign_in,
    remember,
    require_admin,
    require_visitor,
    show,
    site_of,
    visitor_of,
)

router = APIRouter(route_class=PageRoute)
_Id = Annotated[int, Path(ge=1, lt=2**31)]
_Before = Annotated[int | None, Query(ge=1, lt=2**31)]
_After = Annotated[str, Query(max_length=100)]
_FormText = Annotated[str, Form(max_length=300)]
_PAGE = 25
_GLANCE_S = 3.0
_UNSHOWN = (Busy, Closed, EnvFailed, InvalidArgument)  # why an episode may have no replay


@router.get("/sign-in")
async def sign_in_form(request: Request, after: _After = "/me") -> HTMLResponse:
    """Ask for a token."""
    response = show("sign_in.html", await visitor_of(request), after=path_after_sign_in(after), refusal="")
    remember(request, response)
    return response


@router.post("/sign-in", response_model=None)
async def sign_in(request: Request, token: _FormText = "", after: _FormText = "/me") -> HTMLResponse | RedirectResponse:
    """Begin a session."""
    site, after = site_of(request), path_after_sign_in(after)
    try:
        identity = await site.service.identify(token.strip())
    except Unauthorized as error:
        refusal = "This token is not known. Copy it again, whole, or ask for a new one."
        if isinstance(error, Disabled):
            refusal = "This user is disabled. Ask an administrator of the service."
        return show("sign_in.html", None, status=401, after=after, refusal=refusal)
    session_id = await site.service.in_thread(lambda: site.sessions.begin(identity))
    response = RedirectResponse(after, 303)
    remember(request, response, session_id)
    return response


@router.post("/sign-out")
async def sign_out(request: Request) -> RedirectResponse:
    """End the session."""
    site = site_of(request)
    await site.service.in_thread(lambda: site.sessions.end(request.cookies[COOKIE]))
    response = RedirectResponse("/", 303)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


@router.post("/fleets/{fleet}/close")
async def close_fleet(
    fleet: Annotated[str, Path(max_length=100)],
    request: Request,
    user_id: Annotated[int, Form(ge=1, lt=2**31)],
) -> RedirectResponse:
    """Close a fleet of the visitor's, or of any user's for an administrator."""
    visitor, service = await require_visitor(request), site_of(request).service
    owner = user_id if visitor.is_admin else visitor.user_id
    await service.run(visitor, "close", lambda: service.fleets.close_fleet(owner, fleet), computes=False)
    return RedirectResponse("/me" if owner == visitor.user_id else f"/participants/{owner}", 303)


@router.get("/me")
async def own_page(request: Request, before: _Before = None) -> HTMLResponse:
    """Return the visitor's own page."""
    visitor = await require_visitor(request)
    return await _show_account(site_of(request), visitor, visitor, before)


@router.get("/participants/{user_id}")
async def participant(user_id: _Id, request: Request, before: _Before = None) -> HTMLResponse:
    """Page of any user, for an administrator."""
    visitor, site = await require_admin(request), site_of(request)
    row = await site.service.in_thread(lambda: site.reading.user(user_id))
    of = Identity(user_id, row["name"], row["role"], 0, row["max_live_envs"], row["max_steps_per_day"])
    return await _show_account(site, visitor, of, before)


async def _show_account(site: Site, visitor: Identity, of: Identity, before: int | None) -> HTMLResponse:
    service = site.service

    def read() -> dict[str, Any]:
        episodes = service.scores.episodes(of.user_id, limit=_PAGE + 1, before_id=before)
        attempts = service.scores.attempts(of.user_id)
        offered = {offer.env for offer in service.settings.offers}
        histories: dict[str, list[float]] = {}
        for attempt in reversed(attempts):
            if attempt["score"] is not None and attempt["void_reason"] is None:
                histories.setdefault(attempt["env"], []).append(attempt["score"])
        last, pictures = _find_last(site, episodes)
        return {
            "episodes": episodes[:_PAGE],
            "next_before": episodes[_PAGE - 1]["id"] if len(episodes) > _PAGE else None,
            "attempts": attempts[:_PAGE],
            "scores": {env: draw_score(scores) for env, scores in histories.items()},
            "places": {env: _place(site, env, of.name) for env in histories if env in offered},
            "fleets": service.store.open_fleets(of.user_id),
            "disabled_at": site.reading.user(of.user_id)["disabled_at"],
            "quota": service.quotas.used(of),
            "last": last,
            "pictures": pictures,
        }

    account = await service.run(visitor, "page", read)
    return show("account.html", visitor, of=of, is_first=before is None, **account)


def _find_last(site: Site, episodes: list[dict[str, Any]]) -> tuple[dict[str, Any] | None, Pictures | None]:
    """Return the newest episode that has something to show at a glance, with that if it can be shown quickly."""
    latest = next((episode for episode in episodes if find_hosting(episode["env"]).glance), None)
    if latest is None:
        return None, None
    try:
        replay = site.replays.make(latest, _GLANCE_S)
    except _UNSHOWN:
        return latest, None
    return latest, draw_episode(replay, find_hosting(latest["env"]).glance)


def _place(site: Site, env: str, name: str) -> dict[str, Any] | None:
    return next((row for row in site.service.scores.fresh_board(env) if row["user"] == name), None)


@router.get("/episodes/{episode_id}")
async def episode_page(episode_id: _Id, request: Request) -> HTMLResponse:
    """Return an episode step by step: the visitor's own, or any user's for an administrator."""
    visitor, site = await require_visitor(request), site_of(request)
    whose = None if visitor.is_admin else visitor.user_id

    def read() -> tuple[dict[str, Any], dict[str, Any], Pictures | None, str]:
        episode = site.reading.episode(whose, episode_id)
        owner = site.reading.user(episode["user_id"])
        try:
            return episode, owner, draw_episode(site.replays.make(episode)), ""
        except _UNSHOWN as error:
            return episode, owner, None, str(error)

    episode, owner, pictures, refusal = await site.service.run(visitor, "replay", read)
    counted, details = find_hosting(episode["env"]).columns, episode["details"]
    facts = {name: details[name] for name in counted if name in details}
    return show("episode.html", visitor, episode=episode, owner=owner, facts=facts, pictures=pictures, refusal=refusal)
