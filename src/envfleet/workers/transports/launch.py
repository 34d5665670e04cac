"""Start worker processes and watch them: the owner's side of the fork server."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from envfleet.errors import EnvfleetError, InvalidArgument
from envfleet.workers.memory import NamelessFile
from envfleet.workers.transports.forkserver import CODE_BYTES

_THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
_END_S = 5.0
_STACK_S = 2.0
_SETTLED_S = 0.01
_SERVE = "import sys; sys.path[:] = {path!r}; from envfleet.workers.transports.forkserver import main; main({fd})"


def worker_environ() -> dict[str, str]:
    """Return the environment for workers: the owner's, with native thread pools of one thread."""
    environ = dict(os.environ)
    if "OMP_NUM_THREADS" not in environ:
        for name in _THREAD_LIMITS:
            environ.setdefault(name, "1")
    return environ


class ForkServer:
    """The fork server of this process, started when it is needed and kept until this process ends."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._pid = os.getpid()

    def warm_up(self) -> socket.socket:
        """Start the server unless it runs, without waiting for it; returns the socket that takes requests."""
        with self._lock:
            if self._process is not None and (self._pid != os.getpid() or self._process.poll() is not None):
                self.end()
            if self._control is None:
                self._control = self._start()
            return self._control

    def _start(self) -> socket.socket:
        if not sys.executable or getattr(sys, "frozen", False):
            raise InvalidArgument(
                f"worker processes need a Python interpreter, and sys.executable is {sys.executable!r}: "
                'use backend="thread" or backend="serial"'
            )
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
        path = [entry or _folder() for entry in list[Any](sys.path) if isinstance(entry, str)]
        # Sets of strings iterate in the same order in every fleet.
        environ = {"PYTHONHASHSEED": "0", **worker_environ()}
        ours, theirs = socket.socketpair()
        # Ctrl-C is the owner's affair, also before the server can say so itself.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with theirs:
                command = [sys.executable, *flags, "-P", "-c", _SERVE.format(path=path, fd=theirs.fileno())]
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environ
                )
        except OSError as error:
            ours.close()
            raise explain_start(error) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._pid = os.getpid()
        return ours

    def fork(self, fds: Sequence[int]) -> None:
        """Have a worker forked that gets these descriptors."""
        try:
            with self._lock:
                socket.send_fds(self.warm_up(), [b"w"], list(fds))
        except ConnectionError as error:
            raise EnvfleetError(
                "the server that starts workers has just ended: what it printed above says why; if somebody ended it, "
                "call again"
            ) from error

    def end(self) -> None:
        """End the server, if it runs, and wait for its end."""
        process, self._process = self._process, None
        control, self._control = self._control, None
        if control is not None:
            control.close()
        if process is None:
            return
        if self._pid != os.getpid():  # in a fork: it is another process's child
            process.returncode = 0
            return
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def leave(self) -> None:
        """Let go of the server, which ends by itself: a second Ctrl-C at exit finds nothing to wait for."""
        if self._process is not None:
            self._process.returncode = 0
        if self._control is not None:
            self._control.detach()  # closed with this process: to close it now would give the server the processor


def close_fds(fds: list[int]) -> None:
    """Close descriptors and remove them from the list, so that what is interrupted can be repeated."""
    while fds:
        os.close(fds.pop())


def _folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # somebody removed it
        return ""


server = ForkServer()
atexit.register(server.leave)


class WorkerProcess:
    """A worker process.

    Args:
        target: `"module:function"` to run in it, called with the arguments and the descriptors.
        arguments: Must pickle.
        fds: Descriptors to pass; copies, they stay the caller's.
        stacks: Where it writes its stack on SIGUSR1; among the descriptors, too.

    Attributes:
        sentinel: Readable once the process has ended; first of all it tells the pid.
        exitcode: As `subprocess` has it, once known.
        place: Where it runs.
    """

    place = "a process of this machine, over shared memory"

    def __init__(self, target: str, arguments: Any, fds: Sequence[int], stacks: NamelessFile) -> None:
        setting = {
            "target": target,
            "environ": worker_environ(),
            "path": [entry for entry in list[Any](sys.path) if isinstance(entry, str)],  # others are this process's own
            "argv": list(sys.argv),
            "folder": _folder(),
        }
        self.exitcode: int | None = None
        self._pid: int | None = None
        self._stacks = stacks
        self._lock = threading.Lock()
        passed: list[int] = []  # what the fork server gets copies of
        kept: list[int] = []
        self._closer = weakref.finalize(self, close_fds, kept)
        try:
            with contextlib.closing(NamelessFile()) as job:
                with open(job.fd, "wb", closefd=False) as file:
                    file.write(pickle.dumps(setting) + cloudpickle.dumps(arguments))
                    file.flush()
                    file.seek(0)
                for reads in (True, False):  # the pipe by which its end is seen, and that by which it sees its owner's
                    read, write = os.pipe()
                    kept.append(read if reads else write)
                    passed.append(write if reads else read)
                self.sentinel = kept[0]
                _lives.add(self)
                server.fork([passed[0], job.fd, passed[1], *_output(passed), *fds])
        except OSError as error:
            self.close()
            raise explain_start(error) from error
        except BaseException:
            self.close()
            raise
        finally:
            close_fds(passed)

    @property
    def pid(self) -> int:
        """Its process id.

        Raises:
            EnvfleetError: The process could not be started.
        """
        if self._pid is None:
            code = self._read()
            if code is None or code < 0:
                raise explain_start(OSError(-code, os.strerror(-code)) if code else OSError("the server ended"))
            self._pid = code
        return self._pid

    def _read(self) -> int | None:
        data = os.read(self.sentinel, CODE_BYTES)
        return int.from_bytes(data, "little", signed=True) if len(data) == CODE_BYTES else None

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Wait until it has ended; returns whether it has."""
        if not self._closer.alive:
            return True
        poll = select.poll()
        poll.register(self.sentinel, select.POLLIN)
        if self.pid and self.exitcode is None and poll.poll(max(0.0, timeout_s) * 1000):
            with self._lock:  # whoever comes second would read that there is nothing more
                if self.exitcode is None:
                    self.exitcode = self._read()
            return True
        return self.exitcode is not None

    def how_ended(self) -> tuple[int | None, str | None]:
        """Return its exit code, once known, and nothing more."""
        return self.exitcode, None

    def stack(self) -> str:
        """Return its Python stack, which it writes when it gets SIGUSR1, whatever it is doing."""
        start = now = os.fstat(self._stacks.fd).st_size
        try:
            if self.has_ended():
                raise ProcessLookupError
            os.kill(self.pid, signal.SIGUSR1)
        except OSError:  # it ends just now, or the owner lets go of it
            return "(the worker has ended)"
        size, deadline_s = -1, time.monotonic() + _STACK_S
        while (now == start or now != size) and time.monotonic() < deadline_s:
            size = now
            time.sleep(_SETTLED_S)
            now = os.fstat(self._stacks.fd).st_size
        text = os.pread(self._stacks.fd, now - start, start).decode(errors="replace")
        return text or "(the worker did not show its stack: it is stopped, or still starting)"

    def kill(self) -> None:
        """End it by force."""
        with contextlib.suppress(ProcessLookupError):
            if not self.has_ended():
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of it; if it still runs, it ends as if its owner had. Idempotent."""
        self._closer()
        _lives.discard(self)


_lives: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


def _forget_lives() -> None:
    """In a fork: close the pipes by which workers know that their owner lives, for this process is not it."""
    for process in list(_lives):
        process.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lives)


def _output(opened: list[int]) -> list[int]:
    """Return this process's stdout and stderr, for a worker; in place of a closed one, one that is `opened`."""
    found = []
    for fd in (1, 2):
        try:
            os.fstat(fd)
            found.append(fd)
        except OSError:
            opened.append(os.open(os.devnull, os.O_WRONLY))
            found.append(opened[-1])
    return found


def explain_start(error: OSError) -> EnvfleetError:
    """Return an error that says what to do about one of the system's."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return InvalidArgument(
            f"this process ran out of file descriptors while it started workers ({error.strerror}): use fewer workers "
            "with more envs_per_worker, or raise the limit before starting Python (`ulimit -n`)"
        )
    return EnvfleetError(
        f"could not start a worker process: {error}. The limit on processes (`ulimit -u`, or the container's) or "
        "memory may be too low: use fewer workers with more envs_per_worker, or raise the limit"
    )
