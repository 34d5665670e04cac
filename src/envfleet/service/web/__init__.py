"""Pages for people: leaderboards, competitions, a participant's own page, replays of episodes, and administration."""

from pathlib import Path

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from envfleet.service.service import Service
from envfleet.service.web import account, administration, competitions, leaderboard, users
from envfleet.service.web.reading import Reading
from envfleet.service.web.replay import Replays
from envfleet.service.web.sessions import Sessions
from envfleet.service.web.site import Site


def install(app: FastAPI) -> None:
    """Add the pages to a service's application.

    Args:
        app: With `state.service`.
    """
    service: Service = app.state.service
    store = service.store
    replays = Replays(store, service.fleets)
    app.state.site = Site(service, Sessions(store), Reading(store), replays)
    for module in (leaderboard, account, administration, users, competitions):
        app.include_router(module.router, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
