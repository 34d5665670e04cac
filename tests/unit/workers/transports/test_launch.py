"""Worker processes: how they start, what they get, how their ends are seen.

That none outlives its owner is in tests/fault/test_endings.py, every way to start Python in test_scripts.py there, too
few descriptors in test_misuse.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fault.programs import is_running
from tests.waiting import PATIENCE_S, wait_until

import envfleet
from envfleet.testing import CountingEnv
from envfleet.workers.memory import NamelessFile
from envfleet.workers.transports.launch import WorkerProcess, server

TARGETS = "tests.unit.workers.launch_targets"
ROOT = Path(__file__).parents[4]

Start = Callable[..., WorkerProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a function of `launch_targets` in a process; what still runs at the end is ended."""
    processes, stacks = [], NamelessFile()
    server.warm_up()

    def start_one(target: str, arguments: Any = None, fds: tuple[int, ...] = ()) -> WorkerProcess:
        target = target if ":" in target else f"{TARGETS}:{target}"
        processes.append(WorkerProcess(target, arguments, fds, stacks))
        return processes[-1]

    yield start_one
    for process in processes:
        process.kill()
        process.close()
    stacks.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def exitcode_of(process: WorkerProcess) -> int | None:
    assert process.has_ended(PATIENCE_S)
    return process.exitcode


# ------------------------------------------------------------------------------------------------ ends


@pytest.mark.parametrize(("argument", "expected"), [(0, 0), (3, 3), (None, 1), ("why", 1)])
def test_exit_code(start: Start, argument: Any, expected: int) -> None:
    process = start("exit_with", argument)
    assert exitcode_of(process) == expected
    process.close()
    assert process.exitcode == expected
    assert process.has_ended()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("fail", "ValueError: on purpose"),
        ("no_such_module:main", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_an_exception_prints_its_traceback(
    start: Start, target: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exitcode_of(start(target)) == 1
    assert words in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGVTALRM])
def test_death_by_signal(start: Start, pipe: tuple[int, int], number: int) -> None:
    process = start("announce_and_sleep", None, (pipe[1],))
    os.read(pipe[0], 10)
    assert not process.has_ended(0.05)
    os.kill(process.pid, number)
    assert exitcode_of(process) == -number
    process.kill()  # no error


def test_workers_and_their_owners_end_at_once(start: Start) -> None:
    """The server, busy with forking, sees ends of workers and of their owners in one call of poll()."""
    server.warm_up()
    helper = server._process
    for _ in range(100):
        start("exit_with", 0).close()
    assert exitcode_of(start("exit_with", 3)) == 3
    assert server._process is helper


def test_signals_meant_for_the_owner_do_nothing(start: Start, pipe: tuple[int, int]) -> None:
    process = start("announce_and_sleep", None, (pipe[1],))
    for wait in (lambda: None, lambda: os.read(pipe[0], 10)):  # perhaps before it runs its first line, and later
        wait()
        for number in (signal.SIGINT, signal.SIGUSR1):
            os.kill(process.pid, number)
    assert not process.has_ended(0.1)


def test_a_process_that_is_released_ends(start: Start, pipe: tuple[int, int]) -> None:
    process = start("announce_and_sleep", None, (pipe[1],))
    os.read(pipe[0], 10)
    pid = process.pid
    process.close()
    process.close()
    wait_until(lambda: not is_running(pid))


# ------------------------------------------------------------------------------------------------ what they get


def describe(start: Start, pipe: tuple[int, int]) -> dict[str, Any]:
    assert exitcode_of(start("describe", None, (pipe[1],))) == 0
    description: dict[str, Any] = json.loads(os.read(pipe[0], 1 << 16))
    return description


def test_surroundings_are_the_owners_as_they_are_now(
    start: Start, pipe: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVFLEET_TEST", "now \udc80")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(sys, "argv", ["program", "--flag"])
    monkeypatch.syspath_prepend(str(ROOT))  # the working directory was the root until now
    monkeypatch.syspath_prepend(str(tmp_path / "later"))
    description = describe(start, pipe)
    assert description["cwd"] == str(tmp_path)
    assert description["path"] == sys.path
    assert description["argv"] == ["program", "--flag"]
    assert description["environ"]["ENVFLEET_TEST"] == "now \udc80"
    assert "HOME" not in description["environ"]
    assert description["stdin"] == ""
    assert description["sigterm"]
    assert description["main"] is None
    assert description["session"] == description["pid"]
    assert description["affinity"] == sorted(os.sched_getaffinity(0))


def test_sets_of_strings_have_one_order_and_global_draws_differ(start: Start, pipe: tuple[int, int]) -> None:
    """Forks of one process share the state of numpy's global generator, which environments may draw from."""
    one, other = describe(start, pipe), describe(start, pipe)
    assert one["order"] == other["order"]
    assert one["draw"] != other["draw"]


def test_a_module_written_after_the_server_started(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for number in range(3):
        (tmp_path / f"fresh_{number}.py").write_text("def main(arguments, fds): raise SystemExit(7)")
        assert exitcode_of(start(f"fresh_{number}:main")) == 7


def test_native_libraries_get_one_thread(start: Start, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert all(describe(start, pipe)["environ"][name] == "1" for name in names)
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    assert describe(start, pipe)["environ"]["MKL_NUM_THREADS"] == "3"
    monkeypatch.delenv("MKL_NUM_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    environ = describe(start, pipe)["environ"]
    assert environ["OMP_NUM_THREADS"] == "2"
    assert "MKL_NUM_THREADS" not in environ


def test_output_goes_where_the_owners_goes(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert exitcode_of(start("say_things")) == 0
        assert capfd.readouterr() == ("out of the worker\n", "err of the worker\n")


def test_large_arguments_arrive_whole(start: Start, pipe: tuple[int, int]) -> None:
    data = os.urandom(3_000_000)
    start("echo", data, (pipe[1],))
    received = b""
    while len(received) < len(data):
        received += os.read(pipe[0], 1 << 20)
    assert received == data


def test_each_sees_the_end_of_its_own_pipe(start: Start) -> None:
    """No other worker holds it, nor the server."""
    ends = []
    for _ in range(3):
        (request_read, request_write), (reply_read, reply_write) = os.pipe(), os.pipe()
        ends.append((start("echo_until_the_end", None, (request_read, reply_write)), request_write, reply_read))
        os.close(request_read)
        os.close(reply_write)
    for process, request, reply in ends:
        os.write(request, b"hello")
        assert os.read(reply, 100) == b"hello"
        os.close(request)
        assert exitcode_of(process) == 0
        assert os.read(reply, 100) == b""
        os.close(reply)


def test_a_worker_of_a_worker(start: Start, pipe: tuple[int, int]) -> None:
    assert exitcode_of(start("start_another", b"inner", (pipe[1],))) == 0
    assert os.read(pipe[0], 100) == b"inner"


# ------------------------------------------------------------------------------------------------ the server


def test_64_at_once_from_one_server(start: Start) -> None:
    processes = [start("exit_with", number) for number in range(64)]
    assert len({process.pid for process in processes}) == 64
    assert [exitcode_of(process) for process in processes] == list(range(64))


def test_from_many_threads_at_once(start: Start) -> None:
    codes: list[int | None] = []
    threads = [
        threading.Thread(target=lambda number=number: codes.append(exitcode_of(start("exit_with", number))))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(map(int, filter(None, codes))) == list(range(1, 8))


def test_a_report_that_another_thread_reads(
    start: Start, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for the pid ends, although another thread reads the pid just before this one waits for it."""
    process = start("announce_and_sleep", None, (pipe[1],))
    read = process._read

    def read_second(timeout_s: float) -> bool:
        read(PATIENCE_S)
        return read(timeout_s)

    monkeypatch.setattr(process, "_read", read_second)
    pids: list[int] = []
    thread = threading.Thread(target=lambda: pids.append(process.pid), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert pids == [process.pid]


def test_one_server_for_all_fleets() -> None:
    with envfleet.make(CountingEnv, 2, backend="process", workers=1) as fleet:
        fleet.reset()
        first = server._process
    assert first is not None
    with envfleet.make(CountingEnv, 2, backend="process", workers=1) as fleet:
        fleet.reset()
        assert server._process is first


def run_program(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    code = f"import os, sys\nimport envfleet\nfrom envfleet.testing import CountingEnv\n{textwrap.dedent(code)}"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False, **options
    )


@pytest.mark.parametrize("line", ["sys.executable = ''", "sys.frozen = True"])
def test_no_interpreter_to_start(line: str) -> None:
    result = run_program(f"{line}\nenvfleet.make(CountingEnv, 2, backend='process')")
    assert "InvalidArgument: worker processes need a Python interpreter" in result.stderr
    assert 'use backend="thread" or backend="serial"' in result.stderr


def test_closed_output() -> None:
    code = """
    reports = os.dup(1)
    os.close(1)
    os.close(2)
    with envfleet.make(CountingEnv, 2, backend="process", workers=2) as fleet:
        fleet.reset()
        os.write(reports, str(fleet.step([0, 0])[1]).encode())
    """
    assert run_program(code).stdout == "[1. 1.]"


PLANT = "import os, sys\nif 'forkserver' in str(sys.orig_argv):\n    {}\n"


@pytest.mark.parametrize("plant", ["os.fork = lambda: exec('raise BlockingIOError(11, 0)')", "os._exit(3)"])
def test_too_few_processes(plant: str, tmp_path: Path) -> None:
    """The server cannot fork, or cannot even start: an error in words, and nothing hangs."""
    (tmp_path / "sitecustomize.py").write_text(PLANT.format(plant))
    code = """
    for _ in range(2):
        try:
            envfleet.make(CountingEnv, 2, backend="process", workers=2)
        except envfleet.errors.EnvfleetError as error:
            print(error)
    """
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    result = run_program(code, env={**os.environ, "PYTHONPATH": path})
    assert (result.returncode, result.stderr) == (0, "")
    assert (
        len(
            re.findall(
                r"could not start a worker process: .*`ulimit -u`|server that starts workers has ended", result.stdout
            )
        )
        == 2
    )
