"""Starting and watching worker processes: the owner's side of the fork server."""

from __future__ import annotations

import atexit
import contextlib
import errno
import math
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import cloudpickle

from envfleet.errors import EnvfleetError, InvalidArgument
from envfleet.workers.memory import NamelessFile
from envfleet.workers.transports.forkserver import BRANCH, CODE_BYTES, FORK

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
_REPORT_S = 0.05  # another thread may have read the report that a wait is for
_MAX_BRANCHES = 4  # each holds its modules in memory
_SERVE = "import sys; sys.path[:] = {path!r}; from envfleet.workers.transports.forkserver import main; main({fd})"


def worker_environ() -> dict[str, str]:
    """Return the environment variables of workers: the owner's, with native thread pools limited to one thread."""
    environ = dict(os.environ)
    if "OMP_NUM_THREADS" not in environ:
        for name in _THREAD_LIMITS:
            environ.setdefault(name, "1")
    return environ


class _Branch(NamedTuple):
    """Server with modules imported: its socket, and the files that it depends on.

    Attributes:
        control: Socket for requests.
        leash: Pipe; if it closes while the server imports modules, the server ends.
        files: Files of the program's own modules at the time of the import, with their modification times.
    """

    control: socket.socket
    leash: int
    files: dict[str, int]

    def is_current(self) -> bool:
        return all(_changed_ns(file) == then for file, then in self.files.items())

    def close(self) -> None:
        self.control.close()
        os.close(self.leash)


def _own_files() -> dict[str, int]:
    """Return the files of imported modules that are not installed, with their modification times.

    Modules without a spec are left out: nothing imports them, and loading a kernel sets the time of its source.
    """
    installed = sys.prefix, sys.base_prefix
    modules = [module for module in list(sys.modules.values()) if getattr(module, "__spec__", None) is not None]
    files = [getattr(module, "__file__", None) for module in modules]
    return {file: _changed_ns(file) for file in files if isinstance(file, str) and not file.startswith(installed)}


def _changed_ns(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns  # noqa: PTH116  # of hundreds of files
    except OSError:
        return 0


class ForkServer:
    """Fork servers of this process, started on first use and kept until this process ends."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._pid = os.getpid()
        self._branches: dict[bytes, _Branch] = {}  # the last used is the last

    def warm_up(self) -> socket.socket:
        """Start the server unless it runs, without waiting for it; return the socket for requests."""
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
        # Only the owner handles Ctrl-C, also before the server can ignore it itself.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with theirs:
                command = [sys.executable, *flags, "-P", "-c", _SERVE.format(path=path, fd=theirs.fileno())]
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=environ,
                    start_new_session=True,  # it cleans up also if this process group is killed
                )
        except OSError as error:
            ours.close()
            raise explain_start(error) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._pid = os.getpid()
        return ours

    def branch(self, modules: Sequence[str]) -> socket.socket:
        """Start a server with modules imported unless it runs, without waiting for it.

        The modules are imported with the current environment variables, working folder and so on.

        Args:
            modules: Names of the modules.

        Returns:
            The socket for requests.
        """
        with self._lock:
            control = self.warm_up()
            if not modules:
                return control
            job = pickle.dumps(_surroundings()) + pickle.dumps(list(modules))
            branch = self._branches.pop(job, None)
            if branch is not None and not branch.is_current():
                branch.close()
                branch = None
            self._branches[job] = branch or _branch_off(control, job)
            while len(self._branches) > _MAX_BRANCHES:
                self._branches.pop(next(iter(self._branches))).close()
            return self._branches[job].control

    def forget(self) -> None:
        """Disconnect servers with modules imported; one that still imports ends at once, others after their workers."""
        with self._lock:
            branches, self._branches = self._branches, {}
        for branch in branches.values():
            branch.close()

    def fork(self, fds: Sequence[int], modules: Sequence[str] = ()) -> None:
        """Fork a worker that gets these descriptors.

        Args:
            fds: Descriptors, such as ends of its pipes.
            modules: Modules that are imported in its server.
        """
        try:
            with self._lock:
                socket.send_fds(self.branch(modules), [FORK], list(fds))
        except ConnectionError as error:
            raise EnvfleetError(
                "the server that starts workers has ended: see its output above; if another program killed it, call "
                "again"
            ) from error

    def end(self) -> None:
        """Stop the servers, if they run, and wait until they have ended."""
        process, self._process = self._process, None
        control, self._control = self._control, None
        self.forget()
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
        """Disconnect the servers, which then end, without waiting: a second Ctrl-C must not interrupt a wait."""
        if self._process is not None:
            self._process.returncode = 0
        controls = [self._control, *(branch.control for branch in self._branches.values())]
        for control in controls:
            if control is not None:
                control.detach()  # closed with this process: to close it now would give the server the processor


def _branch_off(control: socket.socket, job: bytes) -> _Branch:
    """Fork a server that imports modules."""
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    passed = [read]
    try:
        with theirs, contextlib.closing(NamelessFile()) as file:
            _write_job(file, job)
            socket.send_fds(control, [BRANCH], [theirs.fileno(), read, file.fd, *_output(passed)])
        return _Branch(ours, write, _own_files())
    except BaseException:
        ours.close()
        os.close(write)
        raise
    finally:
        close_fds(passed)


def _write_job(file: NamelessFile, job: bytes) -> None:
    with open(file.fd, "wb", closefd=False) as opened:
        opened.write(job)
        opened.flush()
        opened.seek(0)


def _surroundings() -> dict[str, Any]:
    """Return the parts of this process that workers copy: working folder, paths, arguments and environment."""
    return {
        "environ": worker_environ(),
        "path": [entry for entry in list[Any](sys.path) if isinstance(entry, str)],  # others are this process's own
        "argv": list(sys.argv),
        "folder": _folder(),
    }


def close_fds(fds: list[int]) -> None:
    """Close descriptors and remove them from the list, so that an interrupted call can be repeated."""
    while fds:
        os.close(fds.pop())


def _folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # removed by another program
        return ""


server = ForkServer()
atexit.register(server.leave)


class WorkerProcess:
    """Worker process.

    Args:
        target: `"module:function"` to run in it, called with the arguments and the descriptors.
        arguments: Picklable arguments.
        fds: Descriptors to pass as copies; the caller still owns them.
        stacks: File to which it writes its stack on SIGUSR1; also one of the descriptors.
        modules: Modules that are imported in the server that forks it.

    Attributes:
        sentinel: Readable once the process has ended; the first bytes are its pid.
        exitcode: Exit code as in `subprocess`, once known.
        place: Description of its machine.
    """

    place = "a process of this machine, over shared memory"

    def __init__(
        self, target: str, arguments: Any, fds: Sequence[int], stacks: NamelessFile, modules: Sequence[str] = ()
    ) -> None:
        self.exitcode: int | None = None
        self._pid: int | None = None
        self._has_ended = False
        self._stacks = stacks
        self._lock = threading.Lock()
        passed: list[int] = []  # what the fork server gets copies of
        kept: list[int] = []
        self._closer = weakref.finalize(self, close_fds, kept)
        try:
            with contextlib.closing(NamelessFile()) as job:
                _write_job(job, pickle.dumps(_surroundings()) + cloudpickle.dumps((target, arguments)))
                (read, reports), (leash, held) = os.pipe(), os.pipe()
                kept += read, held
                passed += reports, leash
                self.sentinel = read
                _lives.add(self)
                server.fork([reports, held, leash, job.fd, *_output(passed), *fds], modules)
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
        """Process id.

        Raises:
            EnvfleetError: The process could not be started.
        """
        if not self._wait(lambda: self._pid is not None, math.inf):
            raise explain_start(OSError("it was closed before it started"))
        return cast(int, self._pid)

    def has_started(self, timeout_s: float) -> bool:
        """Wait until the process has been forked; return False after a timeout.

        Raises:
            EnvfleetError: The process could not be started.
        """
        return self._wait(lambda: self._pid is not None, timeout_s)

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Wait until it has ended; return False after a timeout."""
        return self._wait(lambda: self._has_ended, timeout_s) or not self._closer.alive

    def _wait(self, is_known: Callable[[], bool], timeout_s: float) -> bool:
        """Read reports until `is_known` returns True; return False after a timeout.

        Another thread may read the awaited report, so each wait for a report is short.
        """
        deadline_s = time.monotonic() + timeout_s
        while self._closer.alive and not is_known():
            left_s = max(0.0, deadline_s - time.monotonic())
            if not self._read(min(left_s, _REPORT_S)) and not left_s:
                break
        return is_known()

    def _read(self, timeout_s: float) -> bool:
        """Wait for the next report of the server and process it; return whether there was one."""
        poll = select.poll()
        poll.register(self.sentinel, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            return False
        with self._lock:  # of two threads that see a report, one reads it
            if self._has_ended or not poll.poll(0):
                return False
            data = os.read(self.sentinel, CODE_BYTES)
            number = int.from_bytes(data, "little", signed=True) if len(data) == CODE_BYTES else None
            if self._pid is not None:
                self.exitcode, self._has_ended = number, True
            elif number is None or number < 0:
                raise explain_start(OSError(-number, os.strerror(-number)) if number else OSError("the server ended"))
            else:
                self._pid = number
            return True

    def how_ended(self) -> tuple[int | None, str | None]:
        """Return its exit code, once known, without a description."""
        return self.exitcode, None

    def stack(self) -> str:
        """Return its Python stack, which it writes on SIGUSR1, whatever it is doing."""
        start = now = os.fstat(self._stacks.fd).st_size
        try:
            if self.has_ended():
                raise ProcessLookupError
            if self._pid is not None:
                os.kill(self._pid, signal.SIGUSR1)
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
        """Kill it and its process group; a process that is not forked yet ends when it is closed."""
        if self.has_ended() or self._pid is None:
            return
        for end in (os.killpg, os.kill):  # it may have no group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(self._pid, signal.SIGKILL)

    def close(self) -> None:
        """Disconnect it; if it still runs, it ends as after the end of its owner. Idempotent."""
        self._closer()
        _lives.discard(self)


_lives: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


def _forget_lives() -> None:
    """Close, in a fork, the pipes that show workers that their owner runs, because this process is not the owner."""
    for process in list(_lives):
        process.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lives)


def _output(opened: list[int]) -> list[int]:
    """Return this process's stdout and stderr for a worker; a closed one is replaced by one of `opened`."""
    fds = []
    for fd in (1, 2):
        try:
            os.fstat(fd)
            fds.append(fd)
        except OSError:
            opened.append(os.open(os.devnull, os.O_WRONLY))
            fds.append(opened[-1])
    return fds


def explain_start(error: OSError) -> EnvfleetError:
    """Return an error with advice for an error of the operating system."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return InvalidArgument(
            f"this process ran out of file descriptors while it started workers ({error.strerror}): use fewer workers "
            "with more envs_per_worker, or raise the limit before starting Python (`ulimit -n`)"
        )
    return EnvfleetError(
        f"could not start a worker process: {error}. The limit on processes (`ulimit -u`, or the container's) or "
        "memory may be too low: use fewer workers with more envs_per_worker, or raise the limit"
    )
