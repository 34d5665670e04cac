"""The owner's side of a fleet's first worker process."""

from __future__ import annotations

from typing import Any

from envfleet.transports.link import Link


def link_of(fleet: Any) -> Link:
    link = fleet._engine.transport._links[0]  # the pipe cannot be reached otherwise
    assert isinstance(link, Link)
    return link
