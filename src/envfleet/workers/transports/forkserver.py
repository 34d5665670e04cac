"""The fork server: a small process with numpy and Gymnasium imported, from which worker processes are forked.

It never imports the program's `__main__`, so lambdas, notebooks, stdin and scripts without a guard work. It ends with
its owner; the workers do so by themselves (`end_with_owner`). Requests are one byte each with descriptors; everything
that is answered goes through the pipe that belongs to the worker, so an interrupted start leaves nothing half read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import threading
from typing import Any, Never

import numpy as np

MAX_FDS = 16
CODE_BYTES = 8
_PRELOADED = ("gymnasium", "cloudpickle", "envfleet.workers.transports.process_worker")


def main(control_fd: int) -> None:
    """Fork workers until the other end of the control socket closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until a worker can show its stack
    signal.pthread_sigmask(signal.SIG_SETMASK, set())  # the owner blocked SIGINT so that it could not strike earlier
    for name in _PRELOADED:
        importlib.import_module(name)
    control = socket.socket(fileno=control_fd)
    read, write = os.pipe()
    for fd in (read, write):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    ends: dict[int, int] = {}  # pid -> the write end of its pipe
    poll = select.poll()
    for fd in (control_fd, read):
        poll.register(fd, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(read, 4096)
            _reap(ends)
        if control_fd in ready:
            request, fds, flags, _ = socket.recv_fds(control, 1, MAX_FDS)
            if not request:
                control.close()
                return
            if flags & socket.MSG_CTRUNC:  # there was no room here for all of them
                _refuse(fds, errno.EMFILE)
            else:
                _fork(fds, ends, control_fd)


def _fork(fds: list[int], ends: dict[int, int], control_fd: int) -> None:
    """Fork a worker, and send its pid."""
    end, job, *others = fds
    try:
        pid = os.fork()
    except OSError as error:
        _refuse(fds, error.errno or 1)
        return
    if pid == 0:
        run_job(job, [end, *others], [control_fd, *ends.values()])
    ends[pid] = end
    _send(end, pid)
    for fd in (job, *others):
        os.close(fd)


def _refuse(fds: list[int], number: int) -> None:
    """Send an errno, which is a negative number, in place of a pid."""
    for end in fds[:1]:
        _send(end, -number)
    for fd in fds:
        os.close(fd)


def _send(end: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(end, number.to_bytes(CODE_BYTES, "little", signed=True))


def _reap(ends: dict[int, int]) -> None:
    """Send the exit codes of workers that have ended."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            end = ends.pop(found[0])
            _send(end, os.waitstatus_to_exitcode(found[1]))
            os.close(end)


def run_job(job: int, fds: list[int], foreign: list[int]) -> Never:
    """Be the worker: take on what the owner looks like, and do the job."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in foreign:
            os.close(fd)
        life, out, err, *others = fds[1:]
        end_with_owner(life)
        for fd, target in ((out, 1), (err, 2)):
            os.dup2(fd, target)
            os.close(fd)
        np.random.seed()  # noqa: NPY002  # else environments that use the global generator draw the same in all workers
        with os.fdopen(job, "rb") as file:
            setting = pickle.load(file)
            os.environ.clear()
            os.environ.update(setting["environ"])
            sys.path[:], sys.argv[:] = setting["path"], setting["argv"]
            with contextlib.suppress(OSError):
                os.chdir(setting["folder"])
            arguments = pickle.load(file)
        module, function = setting["target"].split(":")
        getattr(importlib.import_module(module), function)(arguments, others)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001  # the last frame of this process
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)


def end_with_owner(life: int) -> None:
    """End this process when the other end of a pipe closes, whatever it is doing and however the owner ended."""
    set_signal: Any = getattr(fcntl, "F_SETSIG", 10)
    if sys.platform == "linux":  # the kernel sends the signal, also into native code that holds the interpreter's lock
        fcntl.fcntl(life, set_signal, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
        if not select.select([life], [], [], 0)[0]:  # else the owner ended before
            return
    threading.Thread(target=_end_at_eof, args=(life,), name="envfleet-owner", daemon=True).start()


def _end_at_eof(life: int) -> None:
    os.read(life, 1)
    os.kill(os.getpid(), signal.SIGKILL)
