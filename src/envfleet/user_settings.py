"""Settings from environment variables or a file `.env`."""

from __future__ import annotations

import os
from typing import Any

from dotenv import dotenv_values, find_dotenv

from envfleet.errors import InvalidArgument

TOKEN = "ENVFLEET_TOKEN"


def find_setting(name: str) -> str | None:
    """Return an environment variable, or that of the nearest `.env` in the working directory or above it.

    Returns:
        Value, or `None`; an empty value counts as not set.
    """
    path = find_dotenv(usecwd=True)
    return os.environ.get(name) or (dotenv_values(path).get(name) if path else None) or None


def find_token(passed: Any, option: str = "token=…") -> str:
    """Return the token: the argument, or that of `ENVFLEET_TOKEN`.

    Args:
        passed: Token, a `str`, or `None`.
        option: Name of the argument, for the message.

    Raises:
        InvalidArgument: The token is missing or malformed.
    """
    token = passed or find_setting(TOKEN)
    if not token:
        raise InvalidArgument(
            f"no token: pass {option}, or put {TOKEN}=… into the environment or a file .env; the administrator of the "
            "service creates one with `envfleet token create NAME`"
        )
    if not isinstance(token, str):
        raise InvalidArgument(f"the token is of type {type(token).__name__}, expected a str: pass {option} as text")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidArgument("the token has invalid characters: copy it again, without spaces and quotes")
    return token
