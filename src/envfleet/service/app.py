"""The web application: routes, what refusals look like, start and stop."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError

import envfleet
from envfleet.errors import EnvfleetError, InvalidArgument, ResetNeeded, WireError
from envfleet.service import web
from envfleet.service.gate import Gate, write_access_log
from envfleet.service.protocols import admin, episodes, fleets, sub_envs
from envfleet.service.protocols.requests import describe, service_of
from envfleet.service.refusals import OutOfStep, Refusal
from envfleet.service.service import Service
from envfleet.service.settings import Settings

SETTINGS_VARIABLE = "ENVFLEET_SERVICE_SETTINGS"
_UNTOLD = "the service failed to do this; its log says why"
_log = logging.getLogger("envfleet.service")
_BODY_CODES = {408: "too_slow", 413: "too_large"}
_STATUS: tuple[tuple[type[EnvfleetError], int], ...] = ((WireError, 400), (ResetNeeded, 409), (InvalidArgument, 422))


def make_app(settings: Settings) -> FastAPI:
    """Make the application.

    Args:
        settings: What the service is started with.
    """
    if settings.has_access_log:
        write_access_log()
    service = Service(settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="envfleet",
        version=envfleet.__version__,
        description="Environments for many people. The calls under /api/v2 have MessagePack bodies.",
        docs_url=None,  # pages with third-party scripts, on the origin of the session's cookie
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.service = service
    app.add_middleware(Gate, max_body_bytes=settings.max_body_bytes, metrics=service.metrics)
    for router in (
        fleets.router,
        fleets.scores_router,
        sub_envs.router,
        admin.router,
        admin.operations,
        episodes.router,
    ):
        app.include_router(router)
    web.install(app)
    app.add_exception_handler(EnvfleetError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_form)
    app.add_exception_handler(SQLAlchemyError, _refuse_for_now)
    app.add_exception_handler(TimeoutError, _refuse_for_now)
    for status in _BODY_CODES:
        app.add_exception_handler(status, _refuse_body)
    return app


def from_environment() -> FastAPI:
    """Make the application of the settings in the environment, as worker processes do."""
    return make_app(Settings.model_validate_json(os.environ[SETTINGS_VARIABLE]))


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    code, detail = getattr(error, "code", "error"), str(error)
    if isinstance(error, OutOfStep):
        return _answer(request, error.status, code, detail, seq=error.seq)
    if isinstance(error, Refusal):
        if error.status == 500:
            _log.error("%s", error, exc_info=error.__cause__)
        return _answer(request, error.status, code, detail, retry_after_s=error.retry_after_s)
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    if status == 500:  # participants are not told what an environment says of itself
        _log.error("a call failed", exc_info=error)
        detail = _UNTOLD
    return _answer(request, status, code, detail)


async def _refuse_form(request: Request, error: Any) -> JSONResponse:
    return _answer(request, 422, "invalid_argument", describe(error.errors()))


async def _refuse_body(request: Request, error: Any) -> JSONResponse:
    return _answer(request, error.status_code, _BODY_CODES[error.status_code], error.detail)


async def _refuse_for_now(request: Request, error: Exception) -> JSONResponse:
    _log.error("the database failed", exc_info=error)
    detail = f"the database does not answer ({type(error).__name__}): try again"
    return _answer(request, 503, "stopping", detail, retry_after_s=2.0)


def _answer(
    request: Request, status: int, code: str, detail: str, *, retry_after_s: float | None = None, **more: Any
) -> JSONResponse:
    service_of(request).metrics.denials.labels(code).inc()
    headers = None if retry_after_s is None else {"Retry-After": str(max(1, round(retry_after_s)))}
    return JSONResponse({"code": code, "detail": detail, **more}, status, headers)
