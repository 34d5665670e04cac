"""Waits for what another process or thread does: conditions with one generous deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 240.0
"""Deadline of every wait. A wait ends as soon as its condition holds; only a hang takes this long.

It is far above what a load of 25 on two cores needs, and below pytest's limit for a test, so the wait's own error
is reported.
"""


def wait_until(condition: Callable[[], object], what: str = "the condition", timeout_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds; raise an AssertionError that names it if it does not."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not hold within {timeout_s:g} s"
        time.sleep(0.005)
