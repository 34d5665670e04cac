"""The fork server: a small process with numpy and Gymnasium imported, from which worker processes are forked.

It never imports the program's `__main__`, so lambdas, notebooks, stdin and scripts without a guard work. Servers with
an environment's modules imported are forked from it. A request is one byte with descriptors; all answers go through the
pipe of the worker, so that an interrupted start leaves no partly read data.

Each worker has a separate session, so that the processes that its environments start can be killed with it. Two pipes
connect it to its owner and to its server:

- The owner reads the first one; the worker and its server hold its other end. The server reports the worker's pid and
  exit code through it. When the owner closes it or ends, the worker closes its environments, and after `GRACE_S` the
  server kills its process group.
- The owner and the server hold the write end of the second one. Once both have ended, the kernel kills the worker's
  process group, even if it is in native code.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Never

import numpy as np

MAX_FDS = 16
CODE_BYTES = 8
GRACE_S = 1.0
"""Time for a worker to close its environments after the end of its owner."""

FORK, BRANCH = b"f", b"b"
"""Requests: fork a worker; fork a server that imports more modules."""

_PRELOADED = ("gymnasium", "cloudpickle", "envfleet.workers.transports.process_worker")
_UNFIT = 3
_RECEIVE = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # what environments execute must not hold the pipes open

owner_fd = -1
"""In a worker, a descriptor that has an error condition once the owner has ended."""

_surroundings: dict[str, Any] = {}
"""State of the owner that this process has copied (see `launch`)."""


class _Worker(NamedTuple):
    """The server's ends of a worker's pipes."""

    reports: int
    leash: int


def main(control_fd: int) -> None:
    """Fork workers until the other end of the control socket closes and all workers have ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until a worker can show its stack
    signal.pthread_sigmask(signal.SIG_SETMASK, set())  # the owner blocked SIGINT so that it could not strike earlier
    for name in _PRELOADED:
        importlib.import_module(name)
    # Workers know the owner's registered environments; packages that are imported later register the same again.
    warnings.filterwarnings("ignore", message=".*Overriding environment .* already in registry")
    _Server(control_fd).run()


class _Server:
    """Server that forks workers on request, reports their ends, and kills processes that they leave behind.

    Args:
        control_fd: Socket for requests.
    """

    def __init__(self, control_fd: int) -> None:
        self._poll = select.poll()
        self._controls: dict[int, socket.socket] = {}
        self._workers: dict[int, _Worker] = {}  # by pid
        self._branches: dict[int, int] = {}  # pid of another server -> its control socket
        self._deadlines_s: dict[int, float] = {}  # pid of a worker without an owner -> when to kill its group
        self._wake_fds = os.pipe()
        for fd in self._wake_fds:
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_fds[1], warn_on_full_buffer=False)
        self._poll.register(self._wake_fds[0], select.POLLIN)
        self._answer(control_fd)

    def _answer(self, control_fd: int) -> None:
        self._controls[control_fd] = socket.socket(fileno=control_fd)
        self._poll.register(control_fd, select.POLLIN)

    def run(self) -> None:
        """Serve until all owners have disconnected and all forks have ended."""
        while self._controls or self._workers or self._branches:
            wait_s = min(self._deadlines_s.values(), default=None)
            ready = self._poll.poll(None if wait_s is None else max(0.0, wait_s - time.monotonic()) * 1000)
            known = {self._wake_fds[0], *self._controls}
            # Ends of owners come first: reaping a worker closes its descriptor, and the next worker may get its number.
            for fd in sorted((fd for fd, _ in ready), key=known.__contains__):
                if fd not in known:
                    self._begin_grace(fd)
                elif fd in self._controls:
                    self._take_request(fd)
                else:
                    with contextlib.suppress(BlockingIOError):
                        os.read(fd, 4096)
                    self._reap()
            for pid, deadline_s in list(self._deadlines_s.items()):
                if time.monotonic() >= deadline_s:
                    del self._deadlines_s[pid]
                    _end_group(pid)

    def _take_request(self, control_fd: int) -> None:
        request, fds, flags, _ = socket.recv_fds(self._controls[control_fd], 1, MAX_FDS, _RECEIVE)
        if not request:
            self._poll.unregister(control_fd)
            self._controls.pop(control_fd).close()
        elif flags & socket.MSG_CTRUNC:  # the message had more descriptors than fit
            self._refuse(request, fds, errno.EMFILE)
        else:
            try:
                pid = os.fork()
            except OSError as error:
                self._refuse(request, fds, error.errno or 1)
                return
            if pid == 0:
                self._become(request, fds)
            elif request == BRANCH:
                self._branches[pid], *others = fds
            else:
                reports, leash, *others = fds
                self._workers[pid] = _Worker(reports, leash)
                self._poll.register(reports, 0)
                _send(reports, pid)
            for fd in others:
                os.close(fd)

    def _become(self, request: bytes, fds: list[int]) -> Never:
        """Continue in a fork of this server."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            own = [*self._controls, *self._wake_fds, *self._branches.values()]
            for fd in (*own, *(fd for worker in self._workers.values() for fd in worker)):
                os.close(fd)
            code = run_branch(fds) if request == BRANCH else run_job(fds)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:  # noqa: BLE001  # the last frame of this process
            sys.excepthook(*sys.exc_info())
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            os._exit(code)

    def _refuse(self, request: bytes, fds: list[int], number: int) -> None:
        """Send a negative errno instead of a pid; used when a branch cannot be forked."""
        if request == BRANCH:
            for control_fd in fds[:1]:
                self._answer(control_fd)
        else:
            for reports in fds[:1]:
                _send(reports, -number)
        for fd in fds[request == BRANCH :]:
            os.close(fd)

    def _reap(self) -> None:
        """Report the exit codes of workers that have ended, and kill the processes that they leave behind."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, code = ended[0], os.waitstatus_to_exitcode(ended[1])
                if pid in self._branches:
                    control_fd = self._branches.pop(pid)
                    if code == 0:
                        os.close(control_fd)
                    else:  # its modules are not fit for it, or it was killed
                        self._answer(control_fd)
                    continue
                worker = self._workers.pop(pid, None)
                if worker is None:  # started by a module when it was imported
                    continue
                if self._deadlines_s.pop(pid, None) is None:
                    with contextlib.suppress(KeyError):
                        self._poll.unregister(worker.reports)
                _end_group(pid)
                _send(worker.reports, code)
                for fd in worker:
                    os.close(fd)

    def _begin_grace(self, reports: int) -> None:
        """Set the deadline of a worker after the end of its owner."""
        self._poll.unregister(reports)
        pid = next(pid for pid, worker in self._workers.items() if worker.reports == reports)
        self._deadlines_s[pid] = time.monotonic() + GRACE_S


def _end_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _send(reports: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(reports, number.to_bytes(CODE_BYTES, "little", signed=True))


def run_job(fds: list[int]) -> int:
    """Run a worker with the owner's working folder, paths and environment; return the exit code."""
    global owner_fd  # of the process, as the descriptor is
    os.setsid()
    owner_fd, held, leash, job, out, err, *others = fds
    os.close(held)
    end_with(leash, is_group=True)
    np.random.seed()  # noqa: NPY002  # else environments that use the global generator draw the same in all workers
    with os.fdopen(job, "rb") as file:
        _copy_owner(pickle.load(file), out, err)
        target, arguments = pickle.load(file)
    module, function = target.split(":")
    getattr(importlib.import_module(module), function)(arguments, others)
    return 0


def run_branch(fds: list[int]) -> int:
    """Run a server that imports the modules of environments; return the exit code.

    In a fork of a process with threads, locks may be held forever. If the modules start threads on import, this server
    therefore exits, and the server that it was forked from, without these modules, forks the workers instead.
    """
    control_fd, leash, job, out, err = fds
    is_linux = sys.platform == "linux"  # elsewhere the leash would need a thread
    if is_linux:
        end_with(leash)  # the owner does not wait for an import that hangs
    with os.fdopen(job, "rb") as file:
        _copy_owner(pickle.load(file), out, err)
        import_all(pickle.load(file))
    if count_threads() > 1:
        return _UNFIT
    if is_linux:
        fcntl.fcntl(leash, fcntl.F_SETFL, fcntl.fcntl(leash, fcntl.F_GETFL) & ~os.O_ASYNC)
    os.close(leash)
    gc.collect()
    gc.freeze()  # no collection in a worker writes to the pages of imported modules
    _Server(control_fd).run()
    return 0


def import_all(modules: Iterable[str]) -> None:
    """Import modules; exceptions are ignored, since the worker that needs the module raises them again."""
    for name in modules:
        with contextlib.suppress(BaseException):
            importlib.import_module(name)


def count_threads() -> int:
    """Return the number of threads of this process, including native ones where the system reports them."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return threading.active_count()


def _copy_owner(surroundings: dict[str, Any], out: int, err: int) -> None:
    global _surroundings  # noqa: PLW0603  # of the process
    for fd, target in ((out, 1), (err, 2)):
        os.dup2(fd, target)
        os.close(fd)
    if surroundings == _surroundings:  # and what modules have changed since, when they were imported, stays
        return
    _surroundings = surroundings
    os.environ.clear()
    os.environ.update(surroundings["environ"])
    sys.path[:], sys.argv[:] = surroundings["path"], surroundings["argv"]
    with contextlib.suppress(OSError):
        os.chdir(surroundings["folder"])


def end_with(fd: int, *, is_group: bool = False) -> None:
    """Kill this process, whatever it is doing, when the other ends of a pipe or socket have closed.

    Args:
        fd: This process's end.
        is_group: If True, kill the whole process group.
    """
    set_signal: Any = getattr(fcntl, "F_SETSIG", 10)
    if sys.platform == "linux":  # the kernel sends the signal, also into native code that holds the interpreter's lock
        fcntl.fcntl(fd, set_signal, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp() if is_group else os.getpid())
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
        if not select.select([fd], [], [], 0)[0]:  # else they have closed before
            return
    threading.Thread(target=_end_at_eof, args=(fd, is_group), name="envfleet-owner", daemon=True).start()


def _end_at_eof(fd: int, is_group: bool) -> None:
    os.read(fd, 1)
    os.kill(-os.getpgrp() if is_group else os.getpid(), signal.SIGKILL)
