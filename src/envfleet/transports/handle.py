"""The owner's view of one worker process: is it there, how did it end, and how to end it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable

from envfleet.transports.nursery import EXIT, close_quietly, is_readable, signal_process

_KILLED_S = 5.0  # after SIGKILL only a process stuck in the kernel is still there; do not wait for it for ever


class WorkerHandle:
    """One worker process, as its owner sees it. Made by `envfleet.transports.launch.launch`.

    Owns `sentinel_fd` and the worker's channel; `close` releases them.

    Args:
        pid: The worker's process id.
        pidfd: A pidfd of it, or -1 where there are none.
        channel: The owner's end of the worker's channel (see `envfleet.transports.nursery`).
        is_child: The worker is this process's own child (`start_method="fork"`), not the nursery's.
        on_close: Called once, at the end of `close`.

    Attributes:
        pid: The worker's process id.
        sentinel_fd: Readable or hung up once the process is gone; -1 after `close`. For `select` and `poll` only.
    """

    def __init__(
        self, pid: int, pidfd: int, channel: socket.socket, *, is_child: bool, on_close: Callable[[WorkerHandle], None]
    ) -> None:
        self.pid = pid
        self.sentinel_fd = pidfd if pidfd >= 0 else channel.fileno()
        self._pidfd = pidfd
        self._channel = channel
        self._is_child = is_child
        self._on_close = on_close
        self._exitcode: int | None = None
        self._is_over = False  # nothing more will be learnt about the exit code
        self._lock = threading.Lock()
        self._is_closing = self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "alive" if self.is_alive() else "gone"
        return f"<WorkerHandle pid={self.pid} {state}>"

    def exitcode(self, timeout_s: float = 1.0) -> int | None:
        """Return how the process ended, as `subprocess` does: negative is a signal.

        Args:
            timeout_s: How long to wait for the end and for the news of it.

        Returns:
            The exit code; `None` if it still runs, or if nobody can know (the nursery was killed before it).
        """
        deadline_s = time.monotonic() + timeout_s
        if self.join(timeout_s):
            while not self._learn_exitcode(deadline_s) and time.monotonic() < deadline_s:
                pass
        return self._exitcode

    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        return not self.join(0.0)

    def join(self, timeout_s: float | None) -> bool:
        """Wait until the process is gone; return whether it is. `None` waits for ever."""
        return self._is_closed or self._is_over or is_readable(self.sentinel_fd, timeout_s)

    def send_signal(self, sig: int) -> None:
        """Send a signal; no error if the process is gone, and never to another that got its pid."""
        if not (self._is_closed or self._is_over):
            signal_process(self.sentinel_fd, self.pid, sig)

    def kill(self) -> None:
        """End the process at once, by SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Release the descriptors; kill the worker if it still runs, and wait until it is reaped. Idempotent.

        The exit code stays known. When the last handle is closed, the nursery ends too.
        """
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        self.kill()
        self.exitcode(_KILLED_S)
        self._release()
        self._on_close(self)

    def forget(self) -> None:
        """In a forked child of the owner: release the descriptors and leave the worker alone."""
        self._lock = threading.Lock()
        self._is_closing = self._is_over = True
        if not self._is_closed:  # another thread may have closed it a moment ago, and the number be another's by now
            self._release()

    def _release(self) -> None:
        self._is_closed = True
        self.sentinel_fd = -1
        self._channel.close()
        if self._pidfd >= 0:
            close_quietly([self._pidfd])

    def _learn_exitcode(self, deadline_s: float) -> bool:
        # The process is gone. Returns whether what can be known is known.
        with self._lock:
            if not self._is_over and not self._is_closed:
                if self._is_child:
                    self._reap()
                elif is_readable(self._channel.fileno(), deadline_s - time.monotonic()):
                    self._read_report()
            return self._is_over or self._is_closed

    def _read_report(self) -> None:
        report = b""
        with contextlib.suppress(OSError):
            report = self._channel.recv(EXIT.size)
        if report:
            (self._exitcode,) = EXIT.unpack(report)
            self._is_over = True
        else:
            self._reap()  # the nursery went first; its orphans are ours if we are process 1 or a subreaper

    def _reap(self) -> None:
        try:
            exitcode = _wait_by_pidfd(self._pidfd) if self._pidfd >= 0 else _wait_by_pid(self.pid)
        except ChildProcessError:
            self._is_over = True  # not ours, or somebody else waited for it
            return
        if exitcode is None:
            time.sleep(0.001)  # its descriptors close a moment before it can be waited for
        else:
            self._exitcode, self._is_over = exitcode, True


def _wait_by_pidfd(pidfd: int) -> int | None:
    result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def _wait_by_pid(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None
