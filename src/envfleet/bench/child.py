"""Child process per contender, so that a hang or a crash does not end the benchmark.

`Child.call` runs a module-level function in the child, with a dict that lives as long as the child. Requests and
replies are pickles in a separate pipe; the output of environments goes into a file. Requires POSIX.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any, Self, TypeVar, TypeVarTuple

from envfleet.errors import EnvfleetError, describe_exit

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
State = dict[Any, Any]
"""Objects that a child process keeps between calls."""

_POLL_S = 0.2


class ChildFailed(EnvfleetError):
    """A call in a child process raised, timed out, or ended the process; the message says which."""

    code = "child_failed"


class Child:
    """Child process that runs functions one at a time.

    Args:
        name: Name in error messages.
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
        """True if the process can execute a call."""
        return self._process.poll() is None

    def call(self, function: Callable[[State, *Ts], T], timeout_s: float, *args: *Ts) -> T:
        """Run `function(state, *args)` in the child and return its result.

        Args:
            function: Function of a module; its first parameter is the child's dict.
            timeout_s: Timeout in seconds; then the child and all its descendants are killed.
            *args: More arguments; must be picklable.

        Raises:
            ChildFailed: The call raised, took too long, or ended the process.
        """
        try:
            self._pipe.send((function, args))
            is_result, value = self._wait(timeout_s)
        except (OSError, EOFError):  # it has exited, or its pipe is closed
            raise self._fail(describe_exit(self._process.wait())) from None
        if not is_result:
            raise ChildFailed(f"{self._name}: {value}")
        result: T = value
        return result

    def kill(self) -> None:
        """Kill the child and all its descendants. May be called twice."""
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
        end = time.monotonic() + timeout_s
        # Descendants may keep the pipe open after the child has exited, so there may be no end of file.
        while not self._pipe.poll(_POLL_S) and self.is_alive:
            if time.monotonic() > end:
                raise self._fail(f"took longer than {timeout_s:g} s and was killed")
        if not self._pipe.poll():
            raise EOFError
        reply: tuple[bool, Any] = self._pipe.recv()
        return reply

    def _fail(self, reason: str) -> ChildFailed:
        last_line = ""
        if not self._log.closed:  # it is closed if the child was killed before
            self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 4_000))
            last_line = _line_of(self._log.read().decode(errors="replace"), -1)
        self.kill()
        return ChildFailed(f"{self._name}: {reason}" + (f"; its last output: {last_line}" if last_line else ""))


def _line_of(text: str, place: int) -> str:
    """Return a line of a text, stripped and shortened; empty if the text is empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return textwrap.shorten(lines[place], 300, placeholder="…") if lines else ""


def serve(pipe: Connection) -> None:
    """Answer calls until the pipe ends."""
    state: State = {}
    with contextlib.suppress(EOFError):
        while True:
            function, args = pipe.recv()
            try:
                reply = pickle.dumps((True, function(state, *args)))
            except Exception as error:  # noqa: BLE001 (any exception is the result of the call)
                traceback.print_exc()
                text = _line_of(str(error), 0)
                reply = pickle.dumps((False, ": ".join(filter(None, (type(error).__name__, text)))))
            pipe.send_bytes(reply)
    # End all threads and processes that the contender left; no other process is in this group.
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
