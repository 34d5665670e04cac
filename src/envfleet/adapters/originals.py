"""Original exceptions of sub-environments, which code written for other libraries catches by type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from envfleet.errors import SubEnvError


def raise_original(error: SubEnvError) -> NoReturn:
    """Raise the exception of the sub-environment, from `error`, which names the sub-environment.

    Raises:
        Exception: The original exception.
        SubEnvError: The original cannot be pickled, or is a `SystemExit` or `KeyboardInterrupt`, which would end the
            caller's program.
    """
    original = error.__cause__
    if not isinstance(original, Exception):
        raise error
    error.__cause__ = None  # otherwise each would be the cause of the other
    raise original from error


@contextmanager
def raising_originals() -> Iterator[None]:
    """Turn every `SubEnvError` of a block into the original exception; see `raise_original`."""
    try:
        yield
    except SubEnvError as error:
        raise_original(error)
