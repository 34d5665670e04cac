"""The supervisor of several service processes is killed, or started again later."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import psutil
from tests.service.serving import Command
from tests.waiting import PATIENCE_S, wait_until


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            return False
    return True


def test_service_processes_end_with_their_supervisor(postgres_url: str) -> None:
    """They kept the port, so that the service could not be started again."""
    with Command(postgres_url, "--env", "envfleet/CartPole-v1", "--workers", "2") as command:
        supervisor = psutil.Process(command.pid)
        assert command.read_token().startswith("ef_")  # before the first request, although no terminal reads it
        wait_until(command.answers)
        children = supervisor.children(recursive=True)
        assert len(children) >= 2
        try:
            os.kill(command.pid, signal.SIGKILL)
            psutil.wait_procs(children, PATIENCE_S)
            assert [child for child in children if child.is_running()] == []
            assert is_free(command.port)
        finally:
            for child in children:
                if child.is_running():
                    child.kill()
            command.kill()


def test_each_start_says_how_administrators_get_a_token(tmp_path: Path) -> None:
    """The first token is in the log of the first start only, which a new container does not have."""
    database = f"sqlite:///{tmp_path / 'service.db'}"
    for expected in ("Token of the administrator, shown this once: ef_", "token create NAME [--role admin]"):
        with Command(database, "--env", "envfleet/CartPole-v1") as command:
            command.read_line("For others: ")
            assert expected in "".join(command.lines)
