"""A service with few file descriptors, and more connections than that."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import httpx
import numpy as np
from tests.service.conftest import Caller
from tests.service.serving import Command
from tests.waiting import PATIENCE_S, wait_until

ENV = "envfleet/CartPole-v1"
DESCRIPTORS, CONNECTIONS = 160, 250


def test_running_out_of_descriptors_stops_nothing(tmp_path: Path) -> None:
    """The service stopped accepting connections, could not open its database, and wrote 20 MB of log."""
    log = tmp_path / "log"
    limited = ("sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@" 2> {log}', "sh")
    with (
        Command(f"sqlite:///{tmp_path / 'service.db'}", "--env", ENV, prefix=limited) as command,
        httpx.Client(base_url=command.url, timeout=PATIENCE_S) as http,
    ):
        caller = Caller(http, command.read_token())
        fleet = caller.create(ENV, 2)
        caller.call(f"/fleets/{fleet}/reset", seq=0)
        with contextlib.ExitStack() as stack:
            for seq in range(1, CONNECTIONS + 1):
                stack.enter_context(socket.create_connection(("127.0.0.1", command.port), PATIENCE_S))
                if seq % 10 == 0:
                    caller.call(f"/fleets/{fleet}/step", seq=seq // 10, actions=np.zeros(2, np.int64))
        wait_until(command.answers, "an answer to a new connection")
        assert caller.create(ENV, 2) != fleet
    assert log.stat().st_size < 20_000
