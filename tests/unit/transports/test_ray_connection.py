"""The head of a cluster is looked for, and not too often."""

from __future__ import annotations

import contextlib
import socket
import time
import types
from collections.abc import Iterator

import pytest

from envfleet.transports.ray import connection
from envfleet.transports.ray.connection import Connection


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A port that stands for the head's, with this process connected to its cluster."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        context = types.SimpleNamespace(gcs_address=f"127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setattr("ray.get_runtime_context", lambda: context)
        monkeypatch.setattr(connection, "session", lambda: "ours")
        yield listening


def num_visits(listening: socket.socket) -> int:
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            listening.accept()[0].close()
            count += 1
    return count


def test_polls_do_not_each_knock_at_the_head(head: socket.socket) -> None:
    found = Connection()
    assert [found.why_lost() for _ in range(50)] == [None] * 50
    assert num_visits(head) <= 2  # a busy machine may take more than a second over it


def test_a_head_that_stays_away_is_told(head: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "AGAIN_S", 0.0)
    monkeypatch.setattr(connection, "LOST_S", 0.05)
    found = Connection()
    assert found.why_lost() is None
    head.close()
    found.why_lost()
    time.sleep(0.1)
    why = found.why_lost()
    assert why is not None
    assert found.head in why


def test_before_something_is_asked_the_head_is_always_looked_for(head: socket.socket) -> None:
    found = Connection()
    assert found.why_lost() is None
    assert found.can_ask()
    head.close()
    assert not found.can_ask()
