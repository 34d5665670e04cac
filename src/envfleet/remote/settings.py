"""Settings that a person keeps out of programs: in the environment, or in a file `.env`."""

from __future__ import annotations

import os

from dotenv import dotenv_values, find_dotenv

from envfleet.errors import InvalidArgument

TOKEN = "ENVFLEET_TOKEN"


def find_setting(*names: str) -> str | None:
    """The first of some variables that is set.

    Args:
        *names: Looked up in the environment, then in the nearest `.env` in the working directory or above it.

    Returns:
        Its value, or `None`; empty ones count as not set.
    """
    for name in names:
        if os.environ.get(name):
            return os.environ[name]
    path = find_dotenv(usecwd=True)
    values = dotenv_values(path) if path else {}
    return next((values[name] for name in names if values.get(name)), None)


def find_token(given: str | None) -> str:
    """The token to use: the one that is given, else that of `ENVFLEET_TOKEN`.

    Raises:
        InvalidArgument: There is none, or it cannot be one.
    """
    token = given or find_setting(TOKEN)
    if not token:
        raise InvalidArgument(
            f"no token: pass token=…, or put {TOKEN}=… into the environment or a file .env; who runs the service makes "
            "one with `envfleet token create NAME`"
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidArgument("the token has characters that no token has: copy it again, without spaces and quotes")
    return token
