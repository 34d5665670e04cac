"""A process of its own for every contender: whatever hangs or crashes there does not end the benchmark.

`Child.call` runs a module-level function in the child, with a dict that lives as long as the child does. Requests and
replies are pickles behind a length, through the child's standard input and a private copy of its standard output; what
the environments print goes to standard error, which a file takes.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from typing import IO, Any, Concatenate, ParamSpec, Self, TypeVar

from envfleet.bench.machine import require_psutil
from envfleet.errors import EnvfleetError, describe_exit

P = ParamSpec("P")
T = TypeVar("T")
State = dict[str, Any]

_LENGTH = struct.Struct("<Q")
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
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C reaches the parent only, and one signal ends all descendants
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self._replies: queue.SimpleQueue[tuple[bool, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name=f"child {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can take a call."""
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
        request = pickle.dumps((function, args, kwargs))
        stream = self._process.stdin
        try:
            if stream is None or stream.closed:
                raise BrokenPipeError
            stream.write(_LENGTH.pack(len(request)) + request)
            stream.flush()
        except BrokenPipeError:
            raise self._fail(describe_exit(self._process.wait())) from None
        reply = self._wait(timeout_s)
        if reply is None:
            raise self._fail(describe_exit(self._process.wait()))
        is_result, value = reply
        if not is_result:
            raise ChildFailed(f"{self._name}: {value}")
        result: T = value
        return result

    def kill(self) -> None:
        """End the child and everything it started. May be called twice."""
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._reader.join(timeout=5.0)
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def _read(self) -> None:
        stream = self._process.stdout
        try:
            while stream is not None and (header := stream.read(_LENGTH.size)):
                self._replies.put(pickle.loads(stream.read(_LENGTH.unpack(header)[0])))
        except (OSError, ValueError, EOFError, struct.error, pickle.UnpicklingError):
            pass  # the stream was cut or closed: the child is gone
        self._replies.put(None)

    def _wait(self, timeout_s: float) -> tuple[bool, Any] | None:
        memory = require_psutil().virtual_memory
        end = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(queue.Empty):
                return self._replies.get(timeout=_POLL_S)
            if not self.is_alive:  # its descendants may hold the pipe open, so no end of file tells
                with contextlib.suppress(queue.Empty):
                    return self._replies.get(timeout=_POLL_S)
                return None
            if time.monotonic() > end:
                raise self._fail(f"took longer than {timeout_s:g} s and was ended")
            if memory().available < _MEMORY_FLOOR * memory().total:
                raise self._fail("was ended because it left the machine less than 5 % of its memory")

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


def serve() -> None:
    """Answer calls until standard input ends."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 (only its descriptor matters)
        os.dup2(nothing.fileno(), 0)
    state: State = {}
    while header := requests.read(_LENGTH.size):
        function, args, kwargs = pickle.loads(requests.read(_LENGTH.unpack(header)[0]))
        reply: tuple[bool, Any]
        try:
            reply = (True, function(state, *args, **kwargs))
        except Exception as error:  # noqa: BLE001 (whatever a contender raises is its result)
            traceback.print_exc()
            reply = (False, _one_line(error))
        payload = pickle.dumps(reply)
        replies.write(_LENGTH.pack(len(payload)) + payload)
        replies.flush()
    # Whatever a contender left running, threads or processes, ends with this one; the group is ours alone.
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"


if __name__ == "__main__":
    serve()
