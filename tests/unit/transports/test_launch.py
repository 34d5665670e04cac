"""Worker processes: how they start, what they get, how their ends are seen.

That none is left behind is in `test_nursery.py`; what cannot work, in `test_launch_errors.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.transports.own_python import PATIENCE_S, ROOT, TARGETS, run_python

from envfleet.errors import InvalidArgument
from envfleet.transports.launch import StartMethod, WorkerHandle, launch

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.name != "posix", reason="worker processes need POSIX"),
    # "fork" with threads running is warned about; pytest-timeout and numpy may have some.
    pytest.mark.filterwarnings("ignore:start_method=.fork. while other threads run:RuntimeWarning"),
]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for fd in (read, write):
        with contextlib.suppress(OSError):
            os.close(fd)


Start = Callable[..., WorkerHandle]


@pytest.fixture
def start(method: StartMethod) -> Iterator[Start]:
    """Launch a target of `launch_targets`; what is still open at the end is closed."""
    handles = []

    def start_one(target: str, args: bytes = b"", fds: tuple[int, ...] = (), **options: Any) -> WorkerHandle:
        handles.append(launch(f"{TARGETS}:{target}", args, fds, start_method=method, name="test", **options))
        return handles[-1]

    yield start_one
    for handle in handles:
        handle.close()


def read_until_end(fd: int) -> bytes:
    data = b""
    while part := os.read(fd, 1 << 16):
        data += part
    return data


# --- exit codes and signals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("argument", "expected"), [("0", 0), ("3", 3), ("null", 0), ('"why"', 1)])
def test_exit_code(start: Start, argument: str, expected: int) -> None:
    handle = start("exit_with", argument.encode())
    assert handle.exitcode(PATIENCE_S) == expected
    assert not handle.is_alive()
    handle.close()
    assert handle.exitcode() == expected


def test_exception_prints_its_traceback(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    assert start("fail").exitcode(PATIENCE_S) == 1
    err = capfd.readouterr().err
    assert "ValueError: on purpose" in err
    assert "launch_targets.py" in err


def test_target_that_cannot_be_imported(method: StartMethod, capfd: pytest.CaptureFixture[str]) -> None:
    handle = launch("no_such_module:main", b"", [], start_method=method, name="test")
    assert handle.exitcode(PATIENCE_S) == 1
    handle.close()
    assert "ModuleNotFoundError: No module named 'no_such_module'" in capfd.readouterr().err


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGVTALRM])
def test_death_by_signal_is_seen_at_once(start: Start, pipe: tuple[int, int], sig: int) -> None:
    handle = start("announce_and_hang", b"sleep", (pipe[1],))
    pid = int(os.read(pipe[0], 100))
    assert pid == handle.pid
    assert handle.is_alive()
    assert handle.exitcode(0.0) is None
    assert not handle.join(0.05)
    begin_s = time.monotonic()
    os.kill(pid, sig)
    assert handle.join(1.0)
    assert handle.exitcode() == -sig
    assert time.monotonic() - begin_s < 1.0


def test_signals_meant_for_the_owner_do_nothing(start: Start, pipe: tuple[int, int]) -> None:
    handle = start("announce_and_hang", b"sleep", (pipe[1],))
    for sig in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        handle.send_signal(sig)  # perhaps before the worker runs its first line
    os.read(pipe[0], 100)
    for sig in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        handle.send_signal(sig)
    assert not handle.join(0.1)
    handle.kill()
    assert handle.exitcode(PATIENCE_S) == -signal.SIGKILL
    handle.send_signal(signal.SIGTERM)  # no error
    handle.kill()


def test_sigterm_ends_a_worker(start: Start, pipe: tuple[int, int]) -> None:
    request, reply = os.pipe()
    handle = start("echo_lines", b"", (request, pipe[1]))
    os.write(reply, b"x")
    os.read(pipe[0], 1)
    handle.send_signal(signal.SIGTERM)
    assert handle.exitcode(PATIENCE_S) == -signal.SIGTERM
    os.close(request)
    os.close(reply)


def test_close_ends_what_still_runs(start: Start, pipe: tuple[int, int]) -> None:
    handle = start("announce_and_hang", b"busy", (pipe[1],))
    pid = int(os.read(pipe[0], 100))
    assert "alive" in repr(handle)
    handle.close()
    assert not Path(f"/proc/{pid}").exists()
    assert handle.exitcode() == -signal.SIGKILL
    assert handle.sentinel_fd == -1
    handle.close()
    handle.kill()
    assert handle.join(None)
    assert "closed" in repr(handle)


# --- what a worker gets ----------------------------------------------------------------------------------------------


def test_surroundings_are_the_owners_as_they_are_now(
    start: Start, method: StartMethod, pipe: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy  # noqa: ICN001, F401  # "fork" inherits its state, the others do not

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVFLEET_TEST", "now \udc80")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(sys, "argv", ["program", "--flag"])
    monkeypatch.syspath_prepend(str(ROOT))  # the working directory was the root until now
    monkeypatch.syspath_prepend(str(tmp_path / "later"))
    draws = set()
    for _ in range(2):
        handle = start("surroundings", b"", (pipe[1],))
        assert handle.exitcode(PATIENCE_S) == 0
        found = json.loads(os.read(pipe[0], 1 << 16))
        draws.add(found.pop("draw"))
    assert found["cwd"] == str(tmp_path)
    assert found["path"] == sys.path
    assert found["argv"] == ["program", "--flag"]
    assert found["environ"]["ENVFLEET_TEST"] == "now \udc80"
    assert "HOME" not in found["environ"]
    assert found["stdin"] == ""
    assert found["sigint"]
    assert found["sigterm"]
    assert found["session"] == os.getsid(0)
    assert found["affinity"] == sorted(os.sched_getaffinity(0))
    assert len(draws) == 2, "workers share numpy's global random state"
    if method != "fork":
        assert found["main"] is None
        assert found["descriptors"] <= 6, "0, 1, 2, the channel, the pipe, the listing's own"


def test_a_module_written_after_the_nursery_started(
    method: StartMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for number in range(3):
        (tmp_path / f"fresh_{number}.py").write_text("def main(args, fds): raise SystemExit(7)")
        handle = launch(f"fresh_{number}:main", b"", [], start_method=method, name="test")
        assert handle.exitcode(PATIENCE_S) == 7
        handle.close()


def test_native_libraries_get_one_thread(start: Start, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    for name in names:
        monkeypatch.delenv(name, raising=False)

    def environ() -> dict[str, str]:
        assert start("surroundings", b"", (pipe[1],)).exitcode(PATIENCE_S) == 0
        found: dict[str, str] = json.loads(os.read(pipe[0], 1 << 16))["environ"]
        return found

    assert all(environ()[name] == "1" for name in names)
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    assert environ()["MKL_NUM_THREADS"] == "3"
    monkeypatch.delenv("MKL_NUM_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    found = environ()
    assert found["OMP_NUM_THREADS"] == "2"
    assert "MKL_NUM_THREADS" not in found


def test_output_goes_where_the_owners_goes(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    # More than once, since capfd changes what descriptor 1 is between tests while the nursery lives on.
    assert start("say_things").exitcode(PATIENCE_S) == 0
    out, err = capfd.readouterr()
    assert out.splitlines() == ["out of the worker", "thread of the worker", "exit handler of the worker"]
    assert err == "err of the worker\n"


def test_large_arguments_arrive_whole(start: Start, pipe: tuple[int, int]) -> None:
    args = os.urandom(3_000_000)
    start("echo", args, (pipe[1],))
    data = b""
    while len(data) < len(args):
        data += os.read(pipe[0], 1 << 20)
    assert data == args


def test_many_descriptors(start: Start, pipe: tuple[int, int], method: StartMethod) -> None:
    copies = [os.dup(pipe[1]) for _ in range(100)]
    start("echo", b"x", tuple(copies))
    for fd in (*copies, pipe[1]):
        os.close(fd)
    assert read_until_end(pipe[0]) == b"x"  # nobody else, above all not the nursery, holds the other end
    with pytest.raises(InvalidArgument, match="300 descriptors"):
        start("nothing", b"", (0,) * 300)


def test_each_worker_sees_the_end_of_its_own_pipe(start: Start) -> None:
    workers: list[WorkerHandle] = []
    ends: list[tuple[int, int]] = []
    for _ in range(3):
        (request_read, request_write), (reply_read, reply_write) = os.pipe(), os.pipe()
        ends.append((request_write, reply_read))
        # In "fork" a worker would hold the owner's ends of its own pipes and of those made before it.
        drop = [fd for pair in ends for fd in pair]
        workers.append(start("echo_lines", b"", (request_read, reply_write), close_in_fork=drop))
        os.close(request_read)
        os.close(reply_write)
    for request_write, reply_read in ends:
        os.write(request_write, b"hello")
        assert os.read(reply_read, 100) == b"hello"
    for worker, (request_write, reply_read) in zip(workers, ends, strict=True):
        os.close(request_write)
        assert worker.exitcode(PATIENCE_S) == 0
        assert os.read(reply_read, 100) == b""
        os.close(reply_read)


def test_nested_launch(start: Start, method: StartMethod, pipe: tuple[int, int]) -> None:
    handle = start("nest", method.encode(), (pipe[1],))
    assert handle.exitcode(PATIENCE_S) == 0
    assert os.read(pipe[0], 100) == b"inner"


# --- many, and from anywhere -----------------------------------------------------------------------------------------


def test_64_at_once(start: Start, pipe: tuple[int, int]) -> None:
    handles = [start("echo", b"x", (pipe[1],)) for _ in range(64)]
    assert len({handle.pid for handle in handles}) == 64
    assert [handle.exitcode(40.0) for handle in handles] == [0] * 64
    os.close(pipe[1])
    assert read_until_end(pipe[0]) == b"x" * 64


def test_launch_from_many_threads_at_once(method: StartMethod) -> None:
    codes: list[int | None] = []

    def one(code: int) -> None:
        handle = launch(f"{TARGETS}:exit_with", str(code).encode(), [], start_method=method, name="test")
        codes.append(handle.exitcode(40.0))
        handle.close()

    threads = [threading.Thread(target=one, args=(code,)) for code in range(8)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(codes, key=str) == list(range(8))


UNGUARDED = """
import sys
from envfleet.transports.launch import launch
print("main runs")
for method in ("forkserver", "spawn", "fork"):
    handle = launch("{targets}:exit_with", b"5", [], start_method=method, name="test")
    assert handle.exitcode(20) == 5
    if method != "spawn":
        handle.close()
print("end", flush=True)
"""


@pytest.mark.parametrize("how", ["-c", "-", "file"])
def test_any_main(how: str, tmp_path: Path) -> None:
    code = UNGUARDED.format(targets=TARGETS)
    if how == "file":
        (tmp_path / "script.py").write_text(code)
        how = str(tmp_path / "script.py")
    result = run_python(code, how=how)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n") == ["main runs", "end", ""]
    assert result.stderr == ""


def test_from_a_thread_of_a_script() -> None:
    code = f"""
import threading
def main():
{UNGUARDED.format(targets=TARGETS).replace(chr(10), chr(10) + "    ")}
thread = threading.Thread(target=main)
thread.start()
thread.join()
"""
    result = run_python(code.replace('"spawn", "fork")', '"spawn")'))
    assert result.stdout.split() == ["main", "runs", "end"], result.stderr


def test_fork_leaves_the_owners_buffers_and_exit_handlers_alone() -> None:
    code = f"""
import atexit, sys
from envfleet.transports.launch import launch
atexit.register(print, "exit handler of the owner")
sys.stdout.write("buffered ")
handle = launch("{TARGETS}:say_things", b"", [], start_method="fork", name="test")
assert handle.exitcode(20) == 0
handle.close()
print("owner")
"""
    out = run_python(code).stdout
    assert out.count("buffered") == 1
    assert out.count("exit handler of the owner") == 1
    assert out.count("exit handler of the worker") == 1
