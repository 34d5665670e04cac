"""The peers raise a sub-environment's own exception in the caller; code written for them catches it by its type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from envfleet.errors import SubEnvError


def raise_original(error: SubEnvError) -> NoReturn:
    """Raise what the sub-environment raised, from `error`, which names the sub-environment.

    Raises:
        Exception: The original, where there is one to be had.
        SubEnvError: Otherwise: the original does not survive pickling, or is a `SystemExit` or `KeyboardInterrupt`,
            which would end the caller's program for something that happened elsewhere.
    """
    original = error.__cause__
    if not isinstance(original, Exception):
        raise error
    error.__cause__ = None  # or each would be the other's cause, for ever
    raise original from error


@contextmanager
def raising_originals() -> Iterator[None]:
    """Turn every `SubEnvError` of a block into what the sub-environment raised; see `raise_original`."""
    try:
        yield
    except SubEnvError as error:
        raise_original(error)
