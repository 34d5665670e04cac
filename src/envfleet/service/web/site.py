"""Shared parts of all pages: the visitor, rendering, headers, and error pages."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import jinja2
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from envfleet.errors import EnvfleetError
from envfleet.service.refusals import Forbidden, NotFound, answer_to
from envfleet.service.service import Service
from envfleet.service.users.auth import Identity
from envfleet.service.web import formats
from envfleet.service.web.reading import Reading
from envfleet.service.web.replay import Replays
from envfleet.service.web.sessions import LIFETIME_S, Sessions

COOKIE = "envfleet_session"
_ORIGIN_COOKIE = "envfleet_origin"
_SIGN_IN = "/sign-in"
_FOLDER = Path(__file__).parent
_PATH_AFTER_SIGN_IN = re.compile(r"/(me|admin|competitions(/\d{1,12})?|episodes/\d{1,12}|participants/\d{1,12})?")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclasses.dataclass(frozen=True)
class Site:
    """Context of the pages of one service.

    Attributes:
        service: The service.
        sessions: Sessions of visitors.
        reading: Other data that pages show.
        replays: Replays of episodes.
    """

    service: Service
    sessions: Sessions
    reading: Reading
    replays: Replays


class SignInNeeded(Exception):
    """The page requires a signed-in visitor."""


class PageRoute(APIRoute):
    """Route that answers errors with pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with headers, refusals and the way to sign in."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                if request.method == "POST":
                    _check_origin(request)
                    if self.path != _SIGN_IN:
                        await require_visitor(request)  # before the form is read
                response = await handle(request)
            except SignInNeeded:
                response = RedirectResponse(f"/sign-in?after={request.url.path}", 303)
            except (EnvfleetError, RequestValidationError, SQLAlchemyError, TimeoutError) as error:
                response = await _refuse(request, error)
            for name, value in _HEADERS.items():
                response.headers[name] = value
            response.headers.setdefault("Cache-Control", "no-store")
            return response

        return answer


def site_of(request: Request) -> Site:
    """Return the site that answers a request."""
    site: Site = request.app.state.site
    return site


# ---------------------------------------------------------------------- visitors


async def visitor_of(request: Request) -> Identity | None:
    """Return the visitor, or `None` without a session."""
    session_id = request.cookies.get(COOKIE)
    if not session_id:
        return None
    site = site_of(request)
    return await site.service.in_thread(lambda: site.sessions.find(session_id))


async def require_visitor(request: Request) -> Identity:
    """Return the visitor.

    Raises:
        SignInNeeded: The visitor has not signed in.
    """
    visitor = await visitor_of(request)
    if visitor is None:
        raise SignInNeeded
    return visitor


async def require_admin(request: Request) -> Identity:
    """Return which administrator visits. To others such pages do not exist.

    Raises:
        SignInNeeded: The visitor has not signed in.
        NotFound: The visitor is not an administrator.
    """
    visitor = await require_visitor(request)
    if not visitor.is_admin:
        raise NotFound("this page does not exist")
    return visitor


async def require_reader(request: Request) -> Identity | None:
    """Return the visitor of a page of scores, which everybody may read unless the service says otherwise.

    Raises:
        SignInNeeded: Scores are not public, and the visitor has not signed in.
    """
    visitor = await visitor_of(request)
    if visitor is None and not site_of(request).service.settings.has_public_scores:
        raise SignInNeeded
    return visitor


def _check_origin(request: Request) -> None:
    """Check that a form was sent from a page of this service, by the browser's headers.

    Browsers say how pages are related only over HTTPS and on localhost. Over plain HTTP the address of the sending page
    is compared with the requested one. Behind a proxy that does not pass the latter on, they differ, and a
    cookie that browsers send from our own pages only (SameSite=strict) decides: the form to sign in needs it, and it
    keeps the address of the page with that form, which all other forms must have.

    Raises:
        Forbidden: It comes from another site.
    """
    relation, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if relation is None and origin is not None:
        own_origin = request.cookies.get(_ORIGIN_COOKIE)
        is_ours = origin.partition("://")[2] == request.headers.get("host")
        is_known = own_origin is not None and (request.url.path == _SIGN_IN or own_origin == origin)
        is_ours |= origin != "null" and is_known
        relation = "same-origin" if is_ours else "cross-site"
    if relation not in (None, "same-origin", "none"):
        raise Forbidden("the form was sent by another site: open the page here and send it from there")


def remember(request: Request, response: Response, session_id: str | None = None) -> None:
    """Give the browser a session's id, and where it signed in; without an id, what the form to sign in needs."""
    origin = request.headers.get("origin", "")
    # A proxy that ends TLS may not report it, but the browser sends its own address.
    secure = request.url.scheme == "https" or origin.startswith("https://")
    cookies = {}
    if session_id is not None:
        cookies = {COOKIE: session_id, _ORIGIN_COOKIE: origin or "none"}
    elif _ORIGIN_COOKIE not in request.cookies:
        cookies = {_ORIGIN_COOKIE: "none"}
    for name, value in cookies.items():
        response.set_cookie(name, value, max_age=int(LIFETIME_S), httponly=True, samesite="strict", secure=secure)


def path_after_sign_in(path: str) -> str:
    """Return where to go, if that is one of our pages; else a participant's own.

    >>> path_after_sign_in("/episodes/7"), path_after_sign_in("//elsewhere.example")
    ('/episodes/7', '/me')
    """
    return path if _PATH_AFTER_SIGN_IN.fullmatch(path) else "/me"


# ---------------------------------------------------------------------- rendering


def _make_templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (formats.duration, formats.ending, formats.figure, formats.iso, formats.moment, formats.short)
    templates.filters |= {each.__name__: each for each in filters}
    return templates


_TEMPLATES = _make_templates()


def render(name: str, **values: Any) -> str:
    """Fill in a template; values are escaped."""
    return _TEMPLATES.get_template(name).render(**values)


def show(name: str, visitor: Identity | None, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page.

    Args:
        name: Name of the template.
        visitor: The visitor.
        status: HTTP status.
        values: For the template.
    """
    return HTMLResponse(render(name, visitor=visitor, **values), status)


def show_changes(request: Request, text: str) -> Response:
    """Return a part of a page that is asked for again and again; 304 while it has not changed."""
    tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return HTMLResponse(text, headers=headers)


async def refuse_page(request: Request, error: Exception) -> HTMLResponse:
    """Return a page that says why an address cannot be shown."""
    response = await _refuse(request, error)
    response.headers.update({**_HEADERS, "Cache-Control": "no-store"})
    return response


def wants_page(request: Request) -> bool:
    """Return whether a browser asks for an address that is not a program's."""
    return not request.url.path.startswith("/api/") and "text/html" in request.headers.get("accept", "")


async def _refuse(request: Request, error: Exception) -> HTMLResponse:
    answer = answer_to(error)
    if isinstance(error, HTTPException):
        answer = answer._replace(detail="this page does not exist")
    detail = "the form is not complete" if isinstance(error, RequestValidationError) else answer.detail
    visitor = None if answer.status == 503 else await visitor_of(request)
    heading = {404: "Not found", 405: "Not found", 403: "Not allowed", 503: "Not now"}.get(
        answer.status, "This did not work"
    )
    return show("refusal.html", visitor, status=answer.status, heading=heading, detail=detail)
