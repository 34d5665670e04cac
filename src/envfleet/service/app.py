"""The web application: routes, what refusals look like, start and stop."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import AsyncIterator
from multiprocessing.process import BaseProcess

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

import envfleet
from envfleet.service import web
from envfleet.service.connections import divide_descriptors
from envfleet.service.gate import Gate, write_access_log
from envfleet.service.protocols import admin, episodes, fleets, openenv, sub_envs
from envfleet.service.protocols.fleet_calls import FleetCalls
from envfleet.service.protocols.requests import REFUSED, refuse, service_of
from envfleet.service.service import Service
from envfleet.service.settings import Settings
from envfleet.service.web.site import refuse_page, wants_page

SETTINGS_VARIABLE = "ENVFLEET_SERVICE_SETTINGS"


def make_app(settings: Settings) -> FastAPI:
    """Make the application.

    Args:
        settings: Settings of the service.
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
        telemetry={"tracing": False, "metrics": False, "logs": False},  # or it is looked for at each request
    )
    app.state.service = service
    app.add_middleware(Gate, max_body_bytes=settings.max_body_bytes, room=service.bodies, metrics=service.metrics)
    app.add_middleware(FleetCalls, service=service)  # the outer one
    for router in (
        fleets.router,
        fleets.scores_router,
        sub_envs.router,
        admin.router,
        admin.operations,
        episodes.router,
        openenv.router,
    ):
        app.include_router(router)
    web.install(app)
    kinds: tuple[int | type[Exception], ...] = (*REFUSED, RequestValidationError, 404, 405, 408, 413)
    for kind in kinds:
        app.add_exception_handler(kind, _refuse)
    return app


def from_environment() -> FastAPI:
    """Make the application of the settings in the environment, as worker processes do."""
    divide_descriptors()
    supervisor = multiprocessing.parent_process()
    if supervisor is not None:
        threading.Thread(target=_end_with, args=(supervisor,), name="envfleet-supervisor", daemon=True).start()
    return make_app(Settings.model_validate_json(os.environ[SETTINGS_VARIABLE]))


def _end_with(supervisor: BaseProcess) -> None:
    """End this process in an orderly way when its supervisor was killed, or it would keep the port forever."""
    supervisor.join()
    os.kill(os.getpid(), signal.SIGTERM)


async def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and wants_page(request):
        return await refuse_page(request, error)
    return refuse(service_of(request), error)
