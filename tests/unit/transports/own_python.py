"""Start a Python of its own for a test, and watch processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envfleet.transports.launch import StartMethod

ROOT = Path(__file__).parents[3]
TARGETS = "tests.unit.transports.launch_targets"
METHODS: tuple[StartMethod, ...] = ("forkserver", "spawn", "fork")
PATIENCE_S = 20.0  # this machine may be busy; what has a deadline of its own is measured


def run_python(
    code: str, *args: str, how: str = "-c", timeout_s: float = 60.0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run code in a Python of its own, with warnings as errors."""
    process = start_python(code, *args, how=how, **options)
    try:
        out, err = process.communicate(code if how == "-" else None, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()  # its workers end with it
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start_python(code: str, *args: str, how: str = "-c", path: str = "", **options: Any) -> subprocess.Popen[str]:
    search = os.pathsep.join(filter(None, [path, str(ROOT / "src"), str(ROOT)]))
    command = [sys.executable, "-W", "error", *([how, code] if how == "-c" else [how]), *args]
    stdin = subprocess.PIPE if how == "-" else subprocess.DEVNULL
    environ = {**os.environ, "PYTHONPATH": search}
    return subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, **options
    )


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float) -> float:
    """Wait for a condition, and return how long it took."""
    begin_s = time.monotonic()
    while not condition():
        assert time.monotonic() - begin_s < timeout_s, "waited in vain"
        time.sleep(0.01)
    return time.monotonic() - begin_s


def children() -> list[str]:
    """The pids of this process's children, zombies too."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def descriptors() -> list[str]:
    """This process's open descriptors."""
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())
