"""What the workers of `test_launch.py` run. Imports little, since "spawn" pays for it in each worker."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time


def nothing(args: bytes, fds: list[int]) -> None:
    pass


def exit_with(args: bytes, fds: list[int]) -> None:
    sys.exit(json.loads(args))


def fail(args: bytes, fds: list[int]) -> None:
    raise ValueError("on purpose")


def echo(args: bytes, fds: list[int]) -> None:
    os.write(fds[0], args)


def echo_lines(args: bytes, fds: list[int]) -> None:
    """Serve like a worker of the transport: until the owner closes its end."""
    while data := os.read(fds[0], 1 << 16):
        os.write(fds[1], data)


def surroundings(args: bytes, fds: list[int]) -> None:
    import numpy as np

    found = {
        "cwd": os.getcwd(),  # noqa: PTH109
        "path": sys.path,
        "argv": sys.argv,
        "environ": dict(os.environ),
        "main": getattr(sys.modules["__main__"], "__file__", None),
        "stdin": sys.stdin.read(),
        "draw": float(np.random.random()),  # noqa: NPY002  # just what we test
        "sigint": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "session": os.getsid(0),
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "affinity": sorted(os.sched_getaffinity(0)),
    }
    os.write(fds[0], json.dumps(found).encode())


def announce_and_hang(args: bytes, fds: list[int]) -> None:
    """Say our pid, then never come back: busy, asleep, or in C code that keeps the GIL; SIGTERM does not help."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(fds[0], f"{os.getpid()} ".encode())
    if args == b"busy":
        while True:
            pass
    if args == b"gil":
        ctypes.PyDLL(None).sleep(1000)
    time.sleep(1000)


def fork_a_child(args: bytes, fds: list[int]) -> None:
    """Leave a child that outlives us and holds what a fork inherits."""
    if os.fork() == 0:
        os.write(fds[0], f"{os.getpid()} ".encode())
        time.sleep(30)
        os._exit(0)


def say_things(args: bytes, fds: list[int]) -> None:
    atexit.register(print, "exit handler of the worker")
    threading.Timer(0.1, print, ["thread of the worker"]).start()
    print("out of the worker")
    sys.stderr.write("err of the worker\n")


def nest(args: bytes, fds: list[int]) -> None:
    """A worker that runs a command, and a worker of its own."""
    from typing import Any

    from envfleet.transports.launch import launch

    out = subprocess.run([sys.executable, "-c", "print('inner')"], capture_output=True, check=True).stdout
    method: Any = args.decode()
    own = launch(f"{__name__}:echo", out.strip(), fds, start_method=method, name="inner")
    code = own.exitcode(20)
    own.close()
    sys.exit(code)
