"""Functions that the processes of `test_launch.py` run, called with arguments and descriptors."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any


def exit_with(code: Any, fds: list[int]) -> None:
    sys.exit(code)


def fail(arguments: Any, fds: list[int]) -> None:
    raise ValueError("on purpose")


def echo(data: bytes, fds: list[int]) -> None:
    with os.fdopen(fds[0], "wb") as file:
        file.write(data)


def echo_until_the_end(arguments: Any, fds: list[int]) -> None:
    while data := os.read(fds[0], 1 << 16):
        os.write(fds[1], data)


def describe(arguments: Any, fds: list[int]) -> None:
    import numpy as np

    description = {
        "cwd": os.getcwd(),  # noqa: PTH109
        "path": sys.path,
        "argv": sys.argv,
        "environ": dict(os.environ),
        "main": getattr(sys.modules["__main__"], "__file__", None),
        "stdin": sys.stdin.read(),
        "draw": float(np.random.random()),  # noqa: NPY002  # just what we test
        "order": list({f"key {number}" for number in range(30)}),
        "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "session": os.getsid(0),
        "pid": os.getpid(),
        "affinity": sorted(os.sched_getaffinity(0)),
    }
    echo(json.dumps(description).encode(), fds)


def announce_and_sleep(arguments: Any, fds: list[int]) -> None:
    os.write(fds[0], b"there")
    time.sleep(1000)


def say_things(arguments: Any, fds: list[int]) -> None:
    print("out of the worker")
    sys.stderr.write("err of the worker\n")


def start_another(arguments: bytes, fds: list[int]) -> None:
    """A worker that has another worker."""
    from envfleet.workers.memory import NamelessFile
    from envfleet.workers.transports.launch import WorkerProcess

    own = WorkerProcess(f"{__name__}:echo", arguments, fds, NamelessFile())
    own.has_ended(20)
    own.close()
    sys.exit(own.exitcode)
