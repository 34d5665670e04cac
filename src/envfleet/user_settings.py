"""Settings that users keep out of programs: in the environment, or in a file `.env`."""

from __future__ import annotations

import os
from typing import Any

from dotenv import dotenv_values, find_dotenv

from envfleet.errors import InvalidArgument

TOKEN = "ENVFLEET_TOKEN"


def find_setting(name: str) -> str | None:
    """Return a variable of the environment, else of the nearest `.env` in the working directory or above it.

    Returns:
        Its value, or `None`; an empty one counts as not set.
    """
    path = find_dotenv(usecwd=True)
    return os.environ.get(name) or (dotenv_values(path).get(name) if path else None) or None


def find_token(given: Any, option: str = "token=…") -> str:
    """Return the token to use: the one that is given, else that of `ENVFLEET_TOKEN`.

    Args:
        given: The token, a `str`, if there is one.
        option: How it is given, for the message that it is missing.

    Raises:
        InvalidArgument: The token is missing or malformed.
    """
    token = given or find_setting(TOKEN)
    if not token:
        raise InvalidArgument(
            f"no token: pass {option}, or put {TOKEN}=… into the environment or a file .env; the administrator of the "
            "service creates one with `envfleet token create NAME`"
        )
    if not isinstance(token, str):
        raise InvalidArgument(f"the token is of type {type(token).__name__}, expected a str: pass {option} as text")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidArgument("the token has characters that no token has: copy it again, without spaces and quotes")
    return token
