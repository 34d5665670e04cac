"""Calls for administrators, and those that ask how the service is."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.exc import SQLAlchemyError

from envfleet.service.protocols.requests import TokenRoute, bearer, caller, service_of
from envfleet.service.protocols.schemas import CreateToken
from envfleet.service.refusals import Forbidden, Stopping
from envfleet.service.service import Service

router = APIRouter(prefix="/api/v2/admin", tags=["admin"], route_class=TokenRoute)
operations = APIRouter(tags=["operations"])
_TokenId = Annotated[int, Path(ge=1, lt=2**31)]


@router.get("/tokens")
async def list_tokens(request: Request) -> dict[str, Any]:
    """Return all tokens, by their first characters."""
    service = await _administered(request)
    return {"tokens": await service.in_thread(service.tokens.list)}


@router.post("/tokens", status_code=201)
async def create_token(body: CreateToken, request: Request) -> dict[str, Any]:
    """Make a token, and its user if need be. It is shown this once."""
    service = await _administered(request)
    return {"token": await service.in_thread(lambda: service.tokens.create(**body.model_dump()))}


@router.post("/tokens/{token_id}/revoke")
async def revoke_token(token_id: _TokenId, request: Request) -> dict[str, Any]:
    """Revoke a token."""
    service = await _administered(request)
    await service.in_thread(lambda: service.tokens.revoke(token_id))
    return {}


@router.post("/tokens/{token_id}/rotate")
async def rotate_token(token_id: _TokenId, request: Request) -> dict[str, Any]:
    """Revoke a token and make another for the same user."""
    service = await _administered(request)
    return {"token": await service.in_thread(lambda: service.tokens.rotate(token_id))}


async def _administered(request: Request) -> Service:
    """Return the service, if an administrator calls it.

    Raises:
        Unauthorized: The token is missing or unknown.
        Forbidden: The token belongs to another user.
    """
    service, identity = await caller(request)
    if identity.role != "admin":
        raise Forbidden("only an administrator may do this: use a token with the role admin")
    return service


@operations.get("/healthz")
async def healthz() -> dict[str, str]:
    """Report that the process answers."""
    return {"status": "ok"}


@operations.get("/readyz")
async def readyz(request: Request) -> dict[str, str]:
    """Report that the process takes calls, and its database commits."""
    service = service_of(request)
    try:
        await service.in_thread(service.store.check_writable)
    except SQLAlchemyError as error:
        raise Stopping(f"the database does not commit: {type(error).__name__}", retry_after_s=5.0) from error
    if not service.is_ready:
        raise Stopping("the service is stopping", retry_after_s=5.0)
    return {"status": "ok"}


@operations.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Figures for Prometheus, for the token of the option `--metrics-token` or of an administrator."""
    service, token = service_of(request), bearer(request) or ""
    if not secrets.compare_digest(token.encode(), (service.settings.metrics_token or "").encode()) or not token:
        await _administered(request)
    return Response(await service.in_thread(service.metrics.text), media_type=CONTENT_TYPE_LATEST)
