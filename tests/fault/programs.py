"""Whole programs that make a fleet: started, waited for, and looked after."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from tests.waiting import PATIENCE_S

PRELUDE = """
import pathlib, sys, time, functools
import numpy as np
import envfleet
from envfleet.testing import CountingEnv, FaultyEnv

def ready(fleet):
    print("pids", *[worker.pid for worker in fleet.stats().workers], flush=True)
"""


def script(body: str) -> str:
    return PRELUDE + textwrap.dedent(body)


@contextlib.contextmanager
def started(path: Path, body: str, **options: Any) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start a script in a new process group and wait until it reports that its fleet is ready."""
    path.write_text(script(body))
    process = subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )
    try:
        line = read_line(process).split()
        assert line[:1] == ["pids"], process.communicate(timeout=PATIENCE_S)
        pids = [int(pid) for pid in line[1:]]
        yield process, [pid for pid in pids if pid != process.pid]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)


def read_line(process: subprocess.Popen[str]) -> str:
    """Read the first line, byte by byte: `communicate` loses what a buffered reader has taken already."""
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(process.stdout.fileno(), 1)):
        line += byte
    return line.decode()


def wait_gone(pids: list[int], timeout_s: float = PATIENCE_S) -> list[int]:
    """Wait until none of the processes runs; returns those that still do."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = [pid for pid in pids if is_running(pid)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Return whether the process exists and has not ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def family(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]
