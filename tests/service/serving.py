"""A service on a port of this machine: in a thread of this process, or as the command that people start."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import uvicorn
from tests.waiting import PATIENCE_S

from envfleet.service.app import make_app
from envfleet.service.offers import make_offer
from envfleet.service.run import configure
from envfleet.service.service import Service
from envfleet.service.settings import Settings


def make_settings(folder: Path, **changes: Any) -> Settings:
    names = "Turbofan-v0", "CartPole-v1", "envfleet/CartPole-v1"
    offers = tuple(make_offer(name, backend="serial", ranked_episodes=2) for name in names)
    values = {
        "attempts_per_day": 1000,
        "database": f"sqlite:///{folder / 'service.db'}",
        "offers": offers,
        "tend_every_s": 3600.0,
    }
    return Settings(**{**values, **changes})


@contextlib.contextmanager
def serve_here(settings: Settings) -> Iterator[tuple[httpx.Client, Service]]:
    """A service in a thread, and a client of it."""
    app = make_app(settings)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # the client may be faster than the server's start
    server = uvicorn.Server(configure(app, timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=PATIENCE_S) as client:
            client.get("/healthz")
            yield client, app.state.service
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        listener.close()


class Command:
    """`envfleet serve` in a separate process; `kill` sends SIGKILL."""

    def __init__(self, database: str, *options: str, port: int = 0, prefix: tuple[str, ...] = ()) -> None:
        command = [
            *prefix,
            sys.executable,
            "-m",
            "envfleet.cli",
            "serve",
            "--database",
            database,
            "--port",
            str(port),
            *options,
        ]
        variables = {**os.environ, "COLUMNS": "200"}
        variables.pop("PYTHONUNBUFFERED", None)  # what it prints reaches a pipe at once nevertheless, as a token must
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=variables
        )
        self.lines: list[str] = []
        try:
            self.url = self._read_until(r"at (http://\S+)")
        except BaseException:
            self.kill()
            raise
        self.port = int(self.url.rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self._process.pid

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz").status_code == 200
        except httpx.RequestError:
            return False

    def read_line(self, begin: str) -> str:
        return self._read_until(f"({begin}.*)")

    def read_token(self) -> str:
        return self._read_until(r"shown this once: (\S+)")

    def _read_until(self, pattern: str) -> str:
        deadline = time.monotonic() + PATIENCE_S
        matches = [match for line in self.lines if (match := re.search(pattern, line))]
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not matches:
                is_there = selector.select(deadline - time.monotonic())
                assert is_there, f"the service did not start in {PATIENCE_S} s; it printed {self.lines}"
                line = self._process.stdout.readline().decode()
                assert line, self._process.stderr.read() if self._process.stderr else ""
                self.lines.append(line)
                matches = [match for match in [re.search(pattern, line)] if match]
        return str(matches[0][1])

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._end()

    def _end(self) -> int:
        try:
            self._process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        return self._process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()
