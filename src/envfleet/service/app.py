"""The web application: routes, what refusals look like, start and stop."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError

import envfleet
from envfleet.errors import EnvfleetError
from envfleet.service import web
from envfleet.service.gate import Gate, write_access_log
from envfleet.service.protocols import admin, episodes, fleets, sub_envs
from envfleet.service.protocols.requests import service_of
from envfleet.service.refusals import OutOfStep, answer_to
from envfleet.service.service import Service
from envfleet.service.settings import Settings

SETTINGS_VARIABLE = "ENVFLEET_SERVICE_SETTINGS"


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
    for kind in (EnvfleetError, RequestValidationError, SQLAlchemyError, TimeoutError, 404, 405, 408, 413):
        app.add_exception_handler(kind, _refuse)
    return app


def from_environment() -> FastAPI:
    """Make the application of the settings in the environment, as worker processes do."""
    return make_app(Settings.model_validate_json(os.environ[SETTINGS_VARIABLE]))


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    status, code, detail, retry_after_s = answer_to(error)
    service_of(request).metrics.denials.labels(code).inc()
    headers = None if retry_after_s is None else {"Retry-After": str(max(1, round(retry_after_s)))}
    more = {"seq": error.seq} if isinstance(error, OutOfStep) else {}
    return JSONResponse({"code": code, "detail": detail, **more}, status, headers)
