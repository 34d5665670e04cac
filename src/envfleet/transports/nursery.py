"""The nursery: a small helper process that starts worker processes, watches them, and outlives its owner to end them.

This file is run as a script (`python nursery.py CONTROL_FD OWNER_PID`) and imports the standard library only: an
owner that uses `start_method="spawn"` must not pay for numpy here. The owner's `__main__` is never imported anywhere.
`envfleet.transports.launch` is the owner's half.

The wire: the owner sends fixed-size requests on one stream socket (*control*), descriptors attached. Each worker has
its own socket pair (*channel*). On it the nursery answers the request (pid and pidfd, or an errno), the owner says
`GO`, and at the end the nursery reports the exit code. The worker keeps the channel open until it ends, so a channel
that is readable after the answer means "gone" even where there are no pidfds, or the nursery itself was killed.

The owner's end is seen in two ways: the control socket reaches end-of-file, or the owner's pidfd becomes readable
(a stray copy of the socket in some forked child cannot fool that one). Workers then get `GRACE_S` to end by
themselves; whatever is left is killed, also in the middle of C code that holds the GIL.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import marshal
import os
import select
import signal
import socket
import struct
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

REQUEST = struct.Struct("=HHi")  # kind, number of descriptors, pid (adopt only)
ANSWER = struct.Struct("=ii")  # pid, errno
EXIT = struct.Struct("=i")  # exit code as subprocess gives it

PRELOAD, FORK, SPAWN, ADOPT = range(4)  # kinds of request
MAX_DESCRIPTORS = 250  # the kernel passes at most 253 in one message

NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)  # a script may have set SIGPIPE to its default, which ends it

GRACE_S = 0.5
_KILLED_S = 5.0  # after SIGKILL only a process stuck in the kernel is still there; do not wait for it for ever

_RESTORED = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name))
_IGNORED = (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)

_ENTRY_FILE = os.path.abspath(__file__).replace("nursery.py", "entry.py")  # noqa: PTH100  # pathlib is slow to import


def send_request(control: socket.socket, kind: int, fds: Sequence[int] = (), pid: int = 0) -> None:
    """Send one request with its descriptors."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
    control.sendmsg([REQUEST.pack(kind, len(fds), pid)], rights, NO_SIGNAL)  # send_fds of Python 3.11 drops the flag


def receive_descriptors(sock: socket.socket, size_bytes: int, max_fds: int) -> tuple[bytes, list[int]]:
    """Receive one message and its descriptors, which no later `exec` inherits."""
    data, fds, _, _ = socket.recv_fds(sock, size_bytes, max_fds, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
    if not hasattr(socket, "MSG_CMSG_CLOEXEC"):
        for fd in fds:
            os.set_inheritable(fd, False)
    return data, fds


def open_pidfd(pid: int) -> int:
    """Open a pidfd, or return -1 where the platform has none or the process is gone."""
    if not hasattr(os, "pidfd_open"):
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def is_readable(fd: int, timeout_s: float | None = 0.0) -> bool:
    """Wait until a descriptor is readable or hung up; `None` waits for ever."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000.0))


def signal_process(sentinel_fd: int, pid: int, signum: int) -> None:
    """Send a signal to a process if it is still there.

    With a pidfd there is no race with pid reuse. Without, the process is looked at first, which leaves a window of
    microseconds between the look and the signal.
    """
    if is_readable(sentinel_fd):
        return
    with contextlib.suppress(ProcessLookupError):
        try:
            signal.pidfd_send_signal(sentinel_fd, signum)
        except (AttributeError, OSError) as error:
            if isinstance(error, ProcessLookupError):
                return
            os.kill(pid, signum)


def close_quietly(fds: Sequence[int]) -> None:
    """Close descriptors; one that is already closed is no error."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


class Nursery:
    """Start workers on request, report their ends, and end them all when the owner is gone.

    Args:
        control: The socket on which requests arrive.
        owner_pid: The process to watch; this process's parent.
        interpreter: How to start a fresh interpreter: the command and its flags.
    """

    def __init__(self, control: socket.socket, owner_pid: int, interpreter: Sequence[str]) -> None:
        self._control = control
        self._interpreter = list(interpreter)
        self._children: dict[int, int] = {}  # pid -> channel; ours to reap
        self._adopted: dict[int, int] = {}  # sentinel -> pid; not ours to reap
        self._former_handlers = _ignore_signals()
        self._wake_read, self._wake_write = _wake_on_child_end()
        self._owner = open_pidfd(owner_pid)
        self._is_orphan = os.getppid() != owner_pid  # it may have gone before its pidfd was opened
        self._is_at_end = False  # of the control socket
        self._poll = select.poll()
        for fd in (control.fileno(), self._wake_read, self._owner):
            if fd >= 0:
                self._poll.register(fd, select.POLLIN)

    def serve(self) -> None:
        """Work until the owner is gone or wants no more, then see every worker off."""
        while not self._is_orphan:
            self._wait(None)
        while not self._is_at_end and is_readable(self._control.fileno()):
            self._answer_request()  # the owner may have gone before its last requests were read
        self._poll.unregister(self._control)
        if self._owner >= 0:
            self._poll.unregister(self._owner)
        self._see_off(GRACE_S)
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)  # not yet reaped, so the pid is still its own
        for sentinel, pid in self._adopted.items():
            signal_process(sentinel, pid, signal.SIGKILL)
        self._see_off(_KILLED_S)

    def _see_off(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while (self._children or self._adopted) and (left_s := deadline_s - time.monotonic()) > 0:
            self._wait(left_s)

    def _wait(self, timeout_s: float | None) -> None:
        for fd, _ in self._poll.poll(None if timeout_s is None else timeout_s * 1000.0):
            if fd == self._wake_read:
                self._reap()
            elif fd == self._owner:
                self._is_orphan = True
            elif fd in self._adopted:
                self._poll.unregister(fd)
                del self._adopted[fd]
                os.close(fd)
            else:
                self._answer_request()

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 512):
                pass
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                channel = self._children.pop(pid)
                with contextlib.suppress(OSError):
                    os.write(channel, EXIT.pack(os.waitstatus_to_exitcode(status)))
                os.close(channel)

    def _answer_request(self) -> None:
        data, fds = b"", list[int]()
        with contextlib.suppress(OSError):
            data, fds = receive_descriptors(self._control, REQUEST.size, MAX_DESCRIPTORS)
        if len(data) < REQUEST.size:
            self._is_orphan = self._is_at_end = True
            return
        kind, num_fds, pid = REQUEST.unpack(data)
        if len(fds) != num_fds:
            close_quietly(fds)  # out of descriptors: the owner sees its channel close
        elif kind == ADOPT:
            self._adopted[fds[0]] = pid
            self._poll.register(fds[0], select.POLLIN)
        elif self._is_orphan:
            close_quietly(fds)
        elif kind == PRELOAD:
            _preload(fds[0])
        else:
            self._start_worker(kind, fds)

    def _start_worker(self, kind: int, fds: list[int]) -> None:
        channel, *others = fds
        try:
            pid = os.fork()
        except OSError as error:
            with contextlib.suppress(OSError):
                os.write(channel, ANSWER.pack(0, error.errno or errno.EAGAIN))
            close_quietly(fds)
            return
        if pid == 0:
            self._become_worker(kind, channel, others)
        close_quietly(others)
        self._children[pid] = channel
        pidfd = open_pidfd(pid)
        sock = socket.socket(fileno=channel)
        with contextlib.suppress(OSError):  # the owner may have gone
            socket.send_fds(sock, [ANSWER.pack(pid, 0)], [pidfd] if pidfd >= 0 else [])
        sock.detach()
        if pidfd >= 0:
            os.close(pidfd)

    def _become_worker(self, kind: int, channel: int, fds: list[int]) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, handler in self._former_handlers.items():
                signal.signal(number, handler)
            self._close_all()
            payload, out, err, *passed = fds
            os.dup2(out, 1)
            os.dup2(err, 2)
            close_quietly([out, err])
            if kind == SPAWN:
                self._become_interpreter([payload, channel, *passed])
            from envfleet.transports import entry  # preloaded

            entry.look_new()
            entry.run_worker(entry.read_job(payload), channel, passed)
        except BaseException:  # noqa: BLE001  # nobody is above us to handle it
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)

    def _close_all(self) -> None:
        # Also the other workers' channels: their owner must see them close.
        self._control.close()
        close_quietly([self._wake_read, self._wake_write, *self._children.values(), *self._adopted])
        if self._owner >= 0:
            os.close(self._owner)

    def _become_interpreter(self, fds: Sequence[int]) -> NoReturn:
        environ = _read_job(os.dup(fds[0]))["environ"]
        for fd in fds:
            os.set_inheritable(fd, True)
        command = [*self._interpreter, _ENTRY_FILE, ",".join(map(str, fds))]
        os.execve(sys.executable, command, environ)


def _ignore_signals() -> dict[signal.Signals, Any]:
    # What is meant for the owner often goes to its whole process group; the nursery must outlive it to do its work.
    # Until now the owner held these back. SIGINT, SIGUSR1 and SIGUSR2 stay ignored in the workers.
    former = {number: signal.signal(number, signal.SIG_IGN) for number in _RESTORED}
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_RESTORED, *_IGNORED})
    return former


def _wake_on_child_end() -> tuple[int, int]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read, write


def _read_job(payload: int) -> dict[str, Any]:  # as `entry` does, which a script without numpy cannot import
    with os.fdopen(payload, "rb") as file:
        file.seek(0)
        job: dict[str, Any] = marshal.load(file)
    return job


def _preload(payload: int) -> None:
    job = _read_job(payload)
    sys.path[:] = job["path"]
    gc.disable()  # importing makes many objects and little garbage
    show_warning, warnings.showwarning = warnings.showwarning, lambda *_, **__: None  # the owner has seen them
    for name in job["modules"]:
        with contextlib.suppress(Exception):  # the worker meets it too, and tells the owner
            importlib.import_module(name)
    warnings.showwarning = show_warning
    gc.freeze()  # collecting in the workers must not touch, and so copy, the pages they share


def main(control_fd: int, owner_pid: int) -> NoReturn:
    """Be the nursery of a process."""
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        # One is open per worker. The workers themselves get the owner's limit.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        soft = 10_240 if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    flags = sys.orig_argv[1 : -len(sys.argv)]
    Nursery(control, owner_pid, [sys.executable, *flags]).serve()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
