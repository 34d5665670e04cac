"""Worker processes with the face of `multiprocessing.Process`."""

from __future__ import annotations

import signal

from envfleet.transports.launch import WorkerHandle


class WorkerProcess:
    """One worker process, as code written for `multiprocessing.Process` asks for it.

    Args:
        handle: The process.
        name: What to call it.
        env_indices: The sub-environments it holds.

    Attributes:
        name: Its name.
        pid: Its process id.
        daemon: Always true: no worker outlives its owner. It may start processes of its own nevertheless.
        env_indices: The sub-environments it holds.
    """

    def __init__(self, handle: WorkerHandle, name: str, env_indices: range) -> None:
        self._handle = handle
        self.name, self.pid, self.env_indices = name, handle.pid, env_indices
        self.daemon = True

    @property
    def exitcode(self) -> int | None:
        """How it ended, a negative number for a signal; `None` while it runs."""
        return None if self.is_alive() else self._handle.exitcode()

    @property
    def sentinel(self) -> int:
        """A file descriptor that becomes ready when the process ends, for `multiprocessing.connection.wait`."""
        return self._handle.sentinel_fd

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._handle.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most `timeout` seconds."""
        self._handle.join(timeout)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._handle.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self._handle.kill()

    def __repr__(self) -> str:
        state = "started" if self.is_alive() else f"stopped exitcode={self.exitcode}"
        held = self.env_indices
        return f"<WorkerProcess {self.name} pid={self.pid} {state}, sub-environments {held.start}–{held.stop - 1}>"
