"""The first and the last thing a worker process does, around the call of its target.

Run as a script (`python entry.py FD,FD,…`) in a fresh interpreter, for `start_method="spawn"`: it imports the standard
library only, so that the environment of the worker is in place before anything else is imported.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import marshal
import os
import signal
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

GO = b"g"
"""What the owner says to a new worker once it knows its pid."""

# Ctrl-C is the owner's to act on. The other two are sent by schedulers to whole process groups, and by a fleet to
# workers, perhaps before they listen; the default action would end them.
IGNORED_SIGNALS = ("SIGINT", "SIGUSR1", "SIGUSR2")

# Held back around the start of a process until it has decided what they do.
GROUP_SIGNALS = (*IGNORED_SIGNALS, "SIGTERM", "SIGHUP", "SIGQUIT")


def read_job(payload: int) -> dict[str, Any]:
    """Read the job that the owner left in a file, and close it."""
    with os.fdopen(payload, "rb") as file:
        file.seek(0)
        job: dict[str, Any] = marshal.load(file)
    return job


def run_worker(job: Mapping[str, Any], channel: int, fds: list[int]) -> NoReturn:
    """Wait for the owner's word, take over its surroundings, call the target, and end the process.

    Args:
        job: What `envfleet.transports.launch` packed.
        channel: This worker's end of its channel (see `envfleet.transports.nursery`). Stays open to the end.
        fds: The descriptors for the target.
    """
    code = 1
    try:
        # An owner that lost the nursery before it heard our pid starts another worker; two must not serve its pipes.
        if not _may_go(channel):
            os._exit(0)
        os.register_at_fork(after_in_child=lambda: _close(channel))
        set_signals()
        _take_surroundings(job)
        code = _call_target(job["target"], job["args"], fds)
    except BaseException:  # noqa: BLE001  # nobody is above us to handle it
        print_failure()
    _leave(code)


def set_signals() -> None:
    """Make SIGTERM end this process, and what is meant for the owner do nothing."""
    for name in IGNORED_SIGNALS:
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """Hold back, in this thread and in a process it starts, what is sent to whole process groups."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.Signals[name] for name in GROUP_SIGNALS})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def look_new() -> None:
    """In a process that began as something else: be an interpreter that has run nothing yet."""
    gc.enable()
    sys.modules["__main__"] = types.ModuleType("__main__")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # made by the interpreter at start


def print_failure() -> None:
    """Print the traceback of the exception being handled."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"envfleet: worker process {os.getpid()} failed:\n{traceback.format_exc()}")


def _may_go(channel: int) -> bool:
    with contextlib.suppress(OSError):  # the owner closed its end with something unread
        return os.read(channel, 1) == GO
    return False


def _take_surroundings(job: Mapping[str, Any]) -> None:
    _set_process_name(job["name"])
    environ: dict[str, str] = job["environ"]
    for key in os.environ.keys() - environ.keys():
        del os.environ[key]
    for key, value in environ.items():
        if os.environ.get(key) != value:
            os.environ[key] = value
    sys.path[:] = job["path"]
    _forget_directories()
    sys.argv[:] = job["argv"]
    if job["cwd"] is not None:
        os.chdir(job["cwd"])
    _take_limits(job)
    # `random` seeds itself again after a fork. numpy's global generator does not: all workers would draw the same.
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _forget_directories() -> None:
    # Modules and directories may have appeared since the nursery looked. `importlib.invalidate_caches` would import
    # importlib.metadata for it; clearing the whole cache frees, and so copies, many pages.
    for path, finder in list(sys.path_importer_cache.items()):
        if finder is None:
            del sys.path_importer_cache[path]
        elif hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()


def _take_limits(job: Mapping[str, Any]) -> None:
    # What a child of the owner inherits. The nursery may be older than a change the owner made.
    with contextlib.suppress(OSError):
        if job["affinity"] and set(job["affinity"]) != os.sched_getaffinity(0):
            os.sched_setaffinity(0, job["affinity"])
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != job["nofile"]:
            resource.setrlimit(resource.RLIMIT_NOFILE, (job["nofile"], hard))


def _set_process_name(name: str) -> None:
    # One write to a file, where there is one (Linux); setting what plain `ps` shows needs C.
    with contextlib.suppress(OSError):
        fd = os.open("/proc/self/comm", os.O_WRONLY)
        try:
            os.write(fd, name.encode()[:15])
        finally:
            os.close(fd)


def _call_target(target: str, args: bytes, fds: list[int]) -> int:
    module, _, name = target.partition(":")
    function: Callable[[bytes, list[int]], None] = getattr(importlib.import_module(module), name)
    try:
        function(args, fds)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        sys.stderr.write(f"{error.code}\n")
        return 1
    return 0


def _leave(code: int) -> NoReturn:
    # What an interpreter does at its end (wait for threads, run exit handlers, flush), but without unwinding the stack,
    # which in a forked worker is the stack of the process it was forked from.
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()  # noqa: SLF001
        atexit._run_exitfuncs()  # noqa: SLF001
    except BaseException:  # noqa: BLE001  # the end comes all the same
        print_failure()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _close(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


def main() -> NoReturn:
    """Be a worker in a fresh interpreter; the descriptors' numbers are the one argument."""
    payload, channel, *fds = map(int, sys.argv[1].split(","))
    for fd in (payload, channel, *fds):
        os.set_inheritable(fd, False)
    job = read_job(payload)
    look_new()
    run_worker(job, channel, fds)


if __name__ == "__main__":
    main()
