"""Starting a service: the first token, the address, the web server."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI

from envfleet.errors import EnvfleetError, InvalidArgument, WireError
from envfleet.service.app import SETTINGS_VARIABLE, make_app
from envfleet.service.connections import PatientConnection, divide_descriptors
from envfleet.service.database.store import Store
from envfleet.service.hosting.hosted import HostedFleet
from envfleet.service.offers import Offer
from envfleet.service.refusals import cause_of
from envfleet.service.settings import Settings
from envfleet.service.users.auth import Tokens

_GRACE_S = 30
_KEEP_ALIVE_S = 75
"""Longer than clients keep a connection, or a call may be on its way when the service ends it."""

_SOCKETS: dict[str, Any] = {"ws": "websockets-sansio", "ws_max_size": 2**15, "ws_per_message_deflate": False}
"""WebSockets: what is sent on one, an action above all, is small, and must not grow when it is unpacked."""


def run(settings: Settings, *, host: str, port: int, workers: int, tell: Callable[[str], None]) -> None:
    """Serve until a signal ends it; calls that run are answered first.

    Args:
        settings: Settings of the service.
        host: Address to listen on.
        port: 0 for any that is free.
        workers: Processes.
        tell: Function that prints a line.

    Raises:
        InvalidArgument: Address or database cannot be used, or an environment cannot be hosted.
    """
    with contextlib.closing(Store(settings.database)) as store:
        store.migrate()
        on_sigterm = signal.getsignal(signal.SIGTERM)
        for offer in settings.offers:
            _try(offer)
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray sets a handler that exits with status 15
        listener = _listen(host, port)
        token = _first_token(store)  # not before: it is shown once, so nothing may fail between
    tell(f"Serving {', '.join(offer.env for offer in settings.offers)} at {_url(listener)} (Ctrl-C ends it)")
    if token is not None:
        tell(f"Token of the administrator, shown this once: {token}")
    role = " [--role admin]" if token is None else ""
    tell(f"For others: envfleet token create NAME{role} --database {redacted(settings.database)}")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    with listener:
        if workers == 1:
            uvicorn.Server(configure(make_app(settings))).run([listener])
            return
        os.environ[SETTINGS_VARIABLE] = settings.model_dump_json()
        config = configure("envfleet.service.app:from_environment", factory=True, workers=workers)
        from uvicorn.supervisors import Multiprocess

        Multiprocess(config, [listener]).run()


def configure(app: FastAPI | str, **options: Any) -> uvicorn.Config:
    """Return the configuration of the web server.

    Args:
        app: The application, or where it is made.
        **options: Others of uvicorn's.
    """
    options = {"timeout_graceful_shutdown": _GRACE_S, "timeout_keep_alive": _KEEP_ALIVE_S, **options}
    options["backlog"] = divide_descriptors()
    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False}
    return uvicorn.Config(app, http=PatientConnection, **_SOCKETS, **quiet, **options)


def _first_token(store: Store) -> str | None:
    """Return a new administrator's token if no token exists."""
    tokens = Tokens(store)
    return None if tokens.has_any() else tokens.create("admin", role="admin")


def _try(offer: Offer) -> None:
    """Compile what an environment's first fleets need, or build and reset one sub-environment if it is not a kernel.

    Raises:
        InvalidArgument: It cannot be built or reset, or its spaces or observations cannot be sent.
    """
    if offer.is_kernel:
        for options in offer.hosting.warm_options:
            offer.make(1, "NEXT_STEP", options).close()
        return
    try:
        HostedFleet.check(offer)
    except EnvfleetError as error:
        cause = str(error) if isinstance(error, InvalidArgument | WireError) else cause_of(error)
        raise InvalidArgument(f"--env {offer.env} cannot be hosted: {cause}") from error


def redacted(database: str) -> str:
    """Return a database's URL without its password."""
    return sa.engine.make_url(database).render_as_string(hide_password=True)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Its protocol is named, so that asyncio turns off the delay of small packets, which would cost 40 ms a call.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
        listener.set_inheritable(True)
    except OSError as error:
        listener.close()
        is_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
        advice = (
            "choose another --port"
            if is_port
            else f"--host {host} is not an address of this machine; 0.0.0.0 means all addresses"
        )
        raise InvalidArgument(f"cannot listen on {host}:{port} ({error.strerror}): {advice}") from error
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
