"""A process of its own for every contender: whatever hangs or crashes there does not end the benchmark.

`Child.call` runs a module-level function in the child, with a dict that lives as long as the child does. Requests and
replies are pickles in a pipe of their own; what the environments print goes into a file. Needs POSIX.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any, Concatenate, ParamSpec, Self, TypeVar

from envfleet.bench.measure import State, require_psutil
from envfleet.errors import EnvfleetError, describe_exit

P = ParamSpec("P")
T = TypeVar("T")

_POLL_S = 0.2
_MEMORY_FLOOR = 0.05  # of the machine's memory: below, the child is ended before the system picks a victim


class ChildFailed(EnvfleetError):
    """A call in a child process raised, hung, or took the process with it; the message says which."""

    code = "child_failed"


class Child:
    """A child process that runs functions one at a time.

    Args:
        name: What it is called in error messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the child)
        self._pipe, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C reaches the parent only, and one signal ends all descendants
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        theirs.close()

    @property
    def is_alive(self) -> bool:
        """Return whether it can take a call."""
        return self._process.poll() is None

    def call(
        self, function: Callable[Concatenate[State, P], T], timeout_s: float, /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `function(state, *args, **kwargs)` in the child and return its result.

        Args:
            function: A function of a module, its first parameter the child's dict.
            timeout_s: How long to wait; after that the child and all its descendants are killed.
            *args: Passed on; must pickle.
            **kwargs: Passed on; must pickle.

        Raises:
            ChildFailed: It raised, took too long, died, or used up the machine's memory.
        """
        try:
            self._pipe.send((function, args, kwargs))
            is_result, value = self._wait(timeout_s)
        except (OSError, EOFError):  # it is dead, or its pipe closed
            raise self._fail(describe_exit(self._process.wait())) from None
        if not is_result:
            raise ChildFailed(f"{self._name}: {value}")
        result: T = value
        return result

    def kill(self) -> None:
        """End the child and everything it started. May be called twice."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._pipe.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def _wait(self, timeout_s: float) -> tuple[bool, Any]:
        memory, end = require_psutil().virtual_memory, time.monotonic() + timeout_s
        # Descendants may hold the pipe open after the child's death, so no end of file tells of it.
        while not self._pipe.poll(_POLL_S) and self.is_alive:
            if time.monotonic() > end:
                raise self._fail(f"took longer than {timeout_s:g} s and was ended")
            if memory().available < _MEMORY_FLOOR * memory().total:
                raise self._fail("was ended because it left the machine less than 5 % of its memory")
        if not self._pipe.poll():
            raise EOFError
        reply: tuple[bool, Any] = self._pipe.recv()
        return reply

    def _fail(self, reason: str) -> ChildFailed:
        tail = self._tail()
        self.kill()
        return ChildFailed(f"{self._name}: {reason}" + (f"; the last it said: {tail}" if tail else ""))

    def _tail(self) -> str:
        with contextlib.suppress(ValueError, OSError):
            self._log.seek(0, os.SEEK_END)
            self._log.seek(max(0, self._log.tell() - 4_000))
            lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
            return lines[-1][:300] if lines else ""
        return ""


def serve(pipe: Connection) -> None:
    """Answer calls until the pipe ends."""
    state: State = {}
    with contextlib.suppress(EOFError):
        while True:
            function, args, kwargs = pipe.recv()
            try:
                reply = pickle.dumps((True, function(state, *args, **kwargs)))
            except Exception as error:  # noqa: BLE001 (whatever a contender raises is its result)
                traceback.print_exc()
                reply = pickle.dumps((False, _one_line(error)))
            pipe.send_bytes(reply)
    # Whatever a contender left running, threads or processes, ends with this one; the group is ours alone.
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
