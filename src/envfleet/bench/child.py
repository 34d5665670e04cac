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
"""What a child process keeps between calls."""

_POLL_S = 0.2


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

    def call(self, function: Callable[[State, *Ts], T], timeout_s: float, *args: *Ts) -> T:
        """Run `function(state, *args)` in the child and return its result.

        Args:
            function: A function of a module, its first parameter the child's dict.
            timeout_s: How long to wait; after that the child and all its descendants are killed.
            *args: Passed on; must pickle.

        Raises:
            ChildFailed: It raised, took too long, or died.
        """
        try:
            self._pipe.send((function, args))
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
        end = time.monotonic() + timeout_s
        # Descendants may hold the pipe open after the child's death, so no end of file tells of it.
        while not self._pipe.poll(_POLL_S) and self.is_alive:
            if time.monotonic() > end:
                raise self._fail(f"took longer than {timeout_s:g} s and was ended")
        if not self._pipe.poll():
            raise EOFError
        reply: tuple[bool, Any] = self._pipe.recv()
        return reply

    def _fail(self, reason: str) -> ChildFailed:
        last_words = ""
        if not self._log.closed:  # it may have been killed before
            self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 4_000))
            last_words = _line_of(self._log.read().decode(errors="replace"), -1)
        self.kill()
        return ChildFailed(f"{self._name}: {reason}" + (f"; the last it said: {last_words}" if last_words else ""))


def _line_of(text: str, place: int) -> str:
    """Return a line of a text, without its margins and not too long; empty if the text is."""
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
            except Exception as error:  # noqa: BLE001 (whatever a contender raises is its result)
                traceback.print_exc()
                text = _line_of(str(error), 0)
                reply = pickle.dumps((False, ": ".join(filter(None, (type(error).__name__, text)))))
            pipe.send_bytes(reply)
    # Whatever a contender left running, threads or processes, ends with this one; the group is ours alone.
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
