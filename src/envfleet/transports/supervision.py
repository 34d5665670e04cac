"""The owner's side of the nursery: when it is started, who uses it, and when it ends.

One `Supervision` per process, `supervision`. The nursery starts with the first user and ends with the last; users are
open `WorkerHandle`s and `hold_nursery` contexts. A forked child of the owner starts from nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import marshal
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from envfleet.errors import EnvfleetError, InvalidArgument, describe_exit
from envfleet.transports import entry, nursery
from envfleet.transports.handle import WorkerHandle

# What every worker needs before its first step. Imported once, in the nursery, and shared by the forked workers.
_PRELOADED = ("numpy", "gymnasium", "cloudpickle", "envfleet.transports.entry", "envfleet.transports.worker")
_THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
                  "VECLIB_MAXIMUM_THREADS")  # fmt: skip
_NURSERY_FILE = os.path.abspath(nursery.__file__)  # noqa: PTH100  # now: the working directory may change
_END_S = 5.0


class NurseryLost(Exception):
    """The nursery did not take a request: it is gone, and a new one can be started."""


class NurseryLink:
    """A running nursery and the socket to it.

    Starting returns at once; what the nursery imports, it imports meanwhile.
    """

    def __init__(self) -> None:
        executable = sys.executable
        if not executable or getattr(sys, "frozen", False):
            raise InvalidArgument(
                f"worker processes need a Python interpreter to start; sys.executable is {executable!r}"
                f"{' of a frozen application' if executable else ''}: use backend='thread' or backend='serial'."
            )
        self._lock = threading.Lock()
        self._preloaded: set[str] = set()
        self.control, theirs = socket.socketpair()
        try:
            with theirs:
                self.process = self._start(executable, theirs.fileno())
        except OSError as error:
            self.control.close()
            raise start_error("the worker nursery", error) from error

    @staticmethod
    def _start(executable: str, control: int) -> subprocess.Popen[bytes]:
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
        command = [executable, *flags, "-P", _NURSERY_FILE, str(control), str(os.getpid())]
        with entry.held_signals():  # until the nursery ignores them
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[control], env=worker_environ()
            )

    def is_alive(self) -> bool:
        """Return whether the nursery still runs."""
        return self.process.poll() is None

    def has_ended(self) -> bool:
        """Return whether the nursery is gone, after its socket said so: the process itself goes a moment later."""
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return False
        return True

    def request(self, kind: int, fds: Sequence[int] = (), pid: int = 0) -> None:
        """Send one request.

        Raises:
            NurseryLost: Nobody is there to read it.
        """
        try:
            with self._lock:
                nursery.send_request(self.control, kind, fds, pid)
        except ConnectionError as error:
            raise NurseryLost from error

    def preload(self, *modules: str) -> None:
        """Have the nursery import modules once, before it forks workers that need them."""
        wanted = [name for name in (*_PRELOADED, *modules) if name not in self._preloaded]
        if wanted:
            with packed({"path": import_path(), "modules": wanted}) as payload:
                self.request(nursery.PRELOAD, [payload])
            self._preloaded.update(wanted)

    def end(self) -> None:
        """Let the nursery end, and reap it."""
        self.control.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def forget(self) -> None:
        """In a forked child of the owner: this nursery belongs to another process."""
        self.control.close()
        self.process.returncode = 0  # nothing for this process to wait for


class Supervision:
    """Everything this process knows about its nursery and its workers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._link: NurseryLink | None = None
        self._handles: set[WorkerHandle] = set()
        self._holders: set[object] = set()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the nursery; start it if there is none."""
        holder = object()
        with self._lock:
            self.link()
            self._holders.add(holder)
        try:
            yield
        finally:
            with self._lock:
                self._holders.discard(holder)
                self._end_if_unused()

    def link(self) -> NurseryLink:
        """Return the running nursery; start one if it is not there or was killed.

        A new nursery takes over the supervision of the workers a killed one left behind.
        """
        with self._lock:
            if self._link is not None and not self._link.is_alive():
                self._end_link()
            if self._link is None:
                self._link = NurseryLink()
                for handle in self._handles:
                    if handle.is_alive():
                        with contextlib.suppress(NurseryLost):  # the next launch finds out
                            self._link.request(nursery.ADOPT, [handle.sentinel_fd], handle.pid)
            return self._link

    def add(self, pid: int, pidfd: int, channel: socket.socket, *, is_child: bool) -> WorkerHandle:
        """Make the handle of a new worker; one that is not the nursery's own child is put under its supervision."""
        handle = WorkerHandle(pid, pidfd, channel, is_child=is_child, on_close=self._remove)
        with self._lock:
            if is_child:
                self._adopt(handle)
            self._handles.add(handle)
        return handle

    def end(self) -> None:
        """Kill every worker and end the nursery: the owner's interpreter ends."""
        for handle in list(self._handles):
            handle.close()
        with self._lock:
            self._end_link()

    def forget(self) -> None:
        """In a forked child of the owner: nothing of this is its own."""
        self._lock = threading.RLock()
        handles, self._handles, self._holders = self._handles, set(), set()
        for handle in handles:
            handle.forget()
        if self._link is not None:
            self._link.forget()
            self._link = None

    def _adopt(self, handle: WorkerHandle) -> None:
        for is_last in (False, True):
            link = self.link()
            try:
                link.request(nursery.ADOPT, [handle.sentinel_fd], handle.pid)
                return
            except NurseryLost:
                link.has_ended()
                if is_last:
                    raise lost_error(link) from None

    def _remove(self, handle: WorkerHandle) -> None:
        with self._lock:
            self._handles.discard(handle)
            self._end_if_unused()

    def _end_if_unused(self) -> None:
        if not self._handles and not self._holders:
            self._end_link()

    def _end_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.end()


def worker_environ() -> dict[str, str]:
    """Return the environment for a worker: the owner's, with native thread pools of one thread.

    Workers are as many as there are cores, so a thread pool in each only gets in the way. What the user has set
    stays; `OMP_NUM_THREADS` alone decides for all, since the other libraries follow it.
    """
    environ = dict(os.environ)
    if "OMP_NUM_THREADS" not in environ:
        for name in _THREAD_LIMITS:
            environ.setdefault(name, "1")
    return environ


def import_path() -> list[str]:
    """Return `sys.path` without what only this process understands."""
    path: list[Any] = sys.path
    return [entry for entry in path if isinstance(entry, str)]


@contextlib.contextmanager
def packed(job: dict[str, Any]) -> Iterator[int]:
    """Leave a job in a nameless file, whose descriptor travels to whoever reads it."""
    fd = os.memfd_create("envfleet-job") if hasattr(os, "memfd_create") else -1
    with open(fd, "wb") if fd >= 0 else tempfile.TemporaryFile() as file:  # noqa: PTH123
        marshal.dump(job, file)
        file.flush()
        yield file.fileno()


def start_error(what: str, error: OSError) -> EnvfleetError:
    """Explain why a process could not be started."""
    return EnvfleetError(f"could not start {what}: {error}. {_limits_in_words()}")


def _limits_in_words() -> str:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    shown = "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
    return (
        f"The limit on processes is {shown} (`ulimit -u`; a container may have a lower one), memory may be short too: "
        "use fewer workers with more envs_per_worker, or raise the limit."
    )


def lost_error(link: NurseryLink) -> EnvfleetError:
    """Explain that the nursery ended, and its successor too, while it started a worker."""
    return EnvfleetError(
        f"the worker nursery {describe_exit(link.process.returncode)} while it started a worker, twice. It imports "
        "numpy and gymnasium and what plug-ins they load: what it printed above says more; "
        'start_method="spawn" starts without them.'
    )


def descriptors_error(who: str) -> InvalidArgument:
    """Explain that there are no more file descriptors."""
    return InvalidArgument(
        f"{who} ran out of file descriptors while it started a worker: use fewer workers with more envs_per_worker, "
        "or raise the limit before starting Python (`ulimit -n`)."
    )


supervision = Supervision()
atexit.register(supervision.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=supervision.forget)
