"""Whole programs: Ctrl-C, an owner that is killed, and every way to start Python."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.timeout(90)

PRELUDE = """
import sys, time, functools
import numpy as np
import envfleet
from envfleet.testing import CountingEnv, FaultyEnv

def ready(fleet):
    print("pids", *[worker.pid for worker in fleet.stats().workers], flush=True)
"""


def script(body: str) -> str:
    return PRELUDE + textwrap.dedent(body)


@contextlib.contextmanager
def started(path: Path, body: str, **options: Any) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start a script in a process group of its own and wait until it says that its fleet is ready."""
    path.write_text(script(body))
    process = subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )
    try:
        line = read_line(process).split()
        assert line[:1] == ["pids"], process.communicate(timeout=10)
        pids = [int(pid) for pid in line[1:]]
        yield process, [pid for pid in pids if pid != process.pid]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=10)


def read_line(process: subprocess.Popen[str]) -> str:
    """Read the first line, byte by byte: `communicate` loses what a buffered reader has taken already."""
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(process.stdout.fileno(), 1)):
        line += byte
    return line.decode()


def wait_gone(pids: list[int], timeout_s: float = 5.0) -> list[int]:
    """Wait until none of the processes runs; returns those that still do."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = [pid for pid in pids if _is_running(pid)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def _is_running(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def family(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


# what the script does while the signal comes
BUSY = """
    fleet = envfleet.make([functools.partial(CountingEnv, 1000)] * 4, backend="{backend}", workers={workers})
    fleet.reset(seed=0)
    ready(fleet)
    while True:
        fleet.step(np.zeros(4, int))
"""
HANGING = """
    fleet = envfleet.make([functools.partial(FaultyEnv, "{fault}")] * 4, backend="{backend}", workers={workers})
    fleet.reset(seed=0)
    ready(fleet)
    fleet.step(np.zeros(4, int))
"""
IDLE = """
    fleet = envfleet.make([CountingEnv] * 4, backend="{backend}", workers={workers})
    fleet.reset(seed=0)
    ready(fleet)
    time.sleep(60)
"""
SENT = """
    fleet = envfleet.make([functools.partial(FaultyEnv, "hang")] * 4, backend="{backend}", workers={workers})
    fleet.reset(seed=0)
    fleet.send(np.zeros(4, int))
    ready(fleet)
    fleet.recv(timeout_s=60)
"""


CLOSING = """
    fleet = envfleet.make([functools.partial(FaultyEnv, "hang", "close")] * 4, backend="{backend}", workers={workers})
    fleet.reset(seed=0)
    ready(fleet)
    fleet.close()
"""
CONSTRUCTING = """
    print("pids", flush=True)
    envfleet.make([functools.partial(FaultyEnv, "hang", "constructor")] * 4, backend="{backend}", workers={workers})
"""


BODIES = {
    "busy": BUSY,
    "hanging": HANGING,
    "idle": IDLE,
    "sent": SENT,
    "constructing": CONSTRUCTING,
    "closing": CLOSING,
}


@pytest.mark.parametrize("what", [*BODIES])
@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_ctrl_c(tmp_path: Path, backend: str, what: str) -> None:
    """SIGINT to the process group, as a terminal sends it: one KeyboardInterrupt, no word from the workers."""
    if backend == "serial" and what == "sent":
        pytest.skip("a serial fleet steps in send")
    body = BODIES[what]
    workers = "None" if backend == "serial" else "2"
    with started(tmp_path / "main.py", body.format(backend=backend, workers=workers, fault="hang")) as (process, pids):
        everyone = [*pids, *family(process.pid)]
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode in (-signal.SIGINT, 130, 1)
        assert errors.count("Traceback (most recent call last)") == 1, errors
        assert errors.rstrip().endswith("KeyboardInterrupt"), errors
        assert not wait_gone(everyone)


def test_ctrl_c_of_an_impatient_person(tmp_path: Path) -> None:
    """Again and again, while the first is still being dealt with: it may be loud, but nothing is left."""
    with started(tmp_path / "main.py", BUSY.format(backend="process", workers=2)) as (process, pids):
        everyone = [*pids, *family(process.pid)]
        for _ in range(5):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.03)
        process.communicate(timeout=20)
        assert process.returncode != 0
        assert not wait_gone(everyone)


def test_ctrl_c_may_be_caught_and_the_fleet_closed(tmp_path: Path) -> None:
    """The usual pattern: stop training on Ctrl-C, save, close."""
    body = """
    with envfleet.make([functools.partial(CountingEnv, 1000)] * 4, backend="process", workers=2) as fleet:
        fleet.reset(seed=0)
        ready(fleet)
        try:
            while True:
                fleet.step(np.zeros(4, int))
        except KeyboardInterrupt:
            print("stopping", flush=True)
    print("closed", flush=True)
    """
    with started(tmp_path / "main.py", body) as (process, pids):
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")
        assert output.split() == ["stopping", "closed"]
        assert not wait_gone(pids)


def test_after_a_caught_ctrl_c_no_reply_is_mixed_up(tmp_path: Path) -> None:
    """An interrupted step is over or the fleet says that it is broken; never one step's answer for another's."""
    body = """
    env_fns = [functools.partial(FaultyEnv, "slow", nth=0, duration_s=0.3, length=1000)] * 2
    fleet = envfleet.make(env_fns, backend="process", workers=2)
    fleet.reset(seed=0)
    ready(fleet)
    try:
        fleet.step(np.full(2, 1))
    except KeyboardInterrupt:
        pass
    try:
        for _ in range(2):
            observations, rewards, *_ = fleet.step(np.full(2, 3))
            assert observations[:, 3].tolist() == [3, 3], observations
            assert np.allclose(rewards, observations[:, 0] + 0.3), (rewards, observations)
        print("went on")
    except envfleet.errors.EnvfleetError as error:
        print("broken", error)
    fleet.close()
    """
    with started(tmp_path / "main.py", body) as (process, _):
        time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")
        assert output.split()[0] in ("went", "broken")


@pytest.mark.parametrize(
    ("what", "number"),
    [
        ("idle", signal.SIGKILL),
        ("busy", signal.SIGKILL),
        ("hang", signal.SIGKILL),
        ("spin", signal.SIGTERM),
        ("native_loop", signal.SIGKILL),
        ("busy", signal.SIGTERM),
        ("constructing", signal.SIGKILL),
    ],
)
def test_owner_killed(tmp_path: Path, what: str, number: signal.Signals) -> None:
    """A signal to the owner alone, idle and in the middle of a step: the workers end by themselves."""
    body = BODIES.get(what, HANGING)
    before = {path.name for path in Path("/dev/shm").iterdir()}
    with started(tmp_path / "main.py", body.format(backend="process", workers=2, fault=what)) as (process, pids):
        time.sleep(0.4)
        deadline = time.monotonic() + 20
        while len(everyone := family(process.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(everyone) >= 2
        process.send_signal(number)
        process.wait(timeout=10)
        assert not wait_gone([*pids, *everyone])
    assert not [path for path in Path("/dev/shm").glob("*envfleet*") if path.name not in before]


def test_owner_exits_without_closing(tmp_path: Path) -> None:
    """The script simply ends, or calls sys.exit, or os._exit."""
    for ending, code in (("", 0), ("sys.exit(4)", 4), ("import os; os._exit(5)", 5)):
        body = f"""
    fleet = envfleet.make([CountingEnv] * 4, backend="process", workers=2)
    fleet.reset(seed=0)
    fleet.send(np.zeros(4, int))
    ready(fleet)
    {ending}
    """
        with started(tmp_path / "main.py", body) as (process, pids):
            start = time.monotonic()
            _, errors = process.communicate(timeout=20)
            assert time.monotonic() - start < 15.0
            assert (process.returncode, errors) == (code, "")
            assert not wait_gone(pids)


# ------------------------------------------------------------------------------------------------ ways to start Python

UNGUARDED = """
import numpy as np
import gymnasium
import envfleet
from envfleet.testing import CountingEnv

LENGTH = 7  # a global of __main__ that the class below needs

class MyEnv(CountingEnv):
    def __init__(self):
        super().__init__(LENGTH)

print("main runs")
offset = 1
fleet = envfleet.make([lambda: MyEnv()] * 3 + [MyEnv], backend="process", workers=2 START)
fleet.reset(seed=0)
print(fleet.get_attr("length"), fleet.step(np.zeros(4, int))[0][:, 0].tolist())
fleet.close()
"""
EXPECTED = "main runs\n(7, 7, 7, 7) [1.0, 1.0, 1.0, 1.0]\n"


@pytest.mark.parametrize("start_method", [None, "spawn", "fork"])
@pytest.mark.parametrize("way", ["script", "-c", "stdin", "-m"])
def test_unguarded_main(tmp_path: Path, way: str, start_method: str | None) -> None:
    """No `if __name__ == "__main__"`, classes and lambdas in __main__: the main module runs once."""
    if start_method == "fork" and way != "script":
        pytest.skip("a fork does not care how Python was started")
    code = UNGUARDED.replace("START", "" if start_method is None else f", start_method={start_method!r}")
    (tmp_path / "main.py").write_text(code)
    arguments = {"script": ["main.py"], "-c": ["-c", code], "stdin": ["-"], "-m": ["-m", "main"]}[way]
    result = subprocess.run(
        [sys.executable, *arguments],
        input=code if way == "stdin" else None,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, EXPECTED, "")


def test_classes_as_a_notebook_defines_them(tmp_path: Path) -> None:
    """Cells compiled one by one into __main__ without a file, from a thread with an event loop, as Jupyter does."""
    code = f"""
import asyncio, sys, types
main = types.ModuleType("__main__")
sys.modules["__main__"] = main
cells = {UNGUARDED.replace("START", "").split("print(", 1)[0].split(chr(10) * 2)!r}
cells.append({("print(" + UNGUARDED.replace("START", "").split("print(", 1)[1])!r})
async def run():
    for number, cell in enumerate(cells):
        exec(compile(cell, f"<ipython-input-{{number}}>", "exec"), main.__dict__)
asyncio.run(run())
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, EXPECTED, "")


def test_from_a_thread(tmp_path: Path) -> None:
    """A fleet made and used in a thread that is not the main one, as in a web server or a notebook's executor."""
    body = """
    import threading
    def work():
        with envfleet.make([CountingEnv] * 4, backend="process", workers=2, step_timeout_s=5) as fleet:
            fleet.reset(seed=0)
            ready(fleet)
            print(fleet.step(np.zeros(4, int))[1].tolist(), flush=True)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    """
    with started(tmp_path / "main.py", body) as (process, pids):
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, output, errors) == (0, "[1.0, 1.0, 1.0, 1.0]\n", "")
        assert not wait_gone(pids)


def test_the_helper_process_is_killed(tmp_path: Path) -> None:
    """The out-of-memory killer takes the process that starts workers: the fleet goes on, and another can be made."""
    body = """
    import os, signal, psutil
    fleet = envfleet.make([CountingEnv] * 4, backend="process", workers=2)
    fleet.reset(seed=0)
    ready(fleet)
    helpers = [child for child in psutil.Process().children() if "nursery" in " ".join(child.cmdline())]
    for helper in helpers:
        helper.kill()
    time.sleep(0.2)
    print(len(helpers), fleet.step(np.zeros(4, int))[1].tolist(), flush=True)
    with envfleet.make([CountingEnv] * 4, backend="process", workers=2) as another:
        another.reset(seed=0)
        print(another.step(np.zeros(4, int))[1].tolist(), flush=True)
    os.kill(fleet.stats().workers[0].pid, signal.SIGKILL)
    try:
        fleet.step(np.zeros(4, int))
    except envfleet.errors.WorkerDied as error:
        print("told", error.worker)
    fleet.close()
    """
    with started(tmp_path / "main.py", body) as (process, pids):
        output, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
        assert output.split("\n") == ["1 [1.0, 1.0, 1.0, 1.0]", "[1.0, 1.0, 1.0, 1.0]", "told 0", ""]
        assert not wait_gone(pids)


def test_a_forked_child_of_the_owner(tmp_path: Path) -> None:
    """A script that forks (a data loader, a subprocess with a preexec_fn): the child's end is not the fleet's."""
    body = """
    import os
    fleet = envfleet.make([CountingEnv] * 4, backend="process", workers=2)
    fleet.reset(seed=0)
    ready(fleet)
    child = os.fork()
    if child == 0:
        fleet = None
        sys.exit(0)
    print(os.waitpid(child, 0)[1], fleet.step(np.zeros(4, int))[1].tolist(), flush=True)
    fleet.close()
    """
    with started(tmp_path / "main.py", body) as (process, pids):
        output, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
        assert output == "0 [1.0, 1.0, 1.0, 1.0]\n"
        assert not wait_gone(pids)


def test_a_fleet_within_a_fleet(tmp_path: Path) -> None:
    """An environment that holds a fleet of processes of its own, as a hierarchical one might."""
    body = """
    class OuterEnv(CountingEnv):
        def __init__(self):
            super().__init__()
            self.inner = envfleet.make([CountingEnv] * 2, backend="process", workers=2)
        def reset(self, *, seed=None, options=None):
            self.inner.reset(seed=seed)
            return super().reset(seed=seed, options=options)
        def step(self, action):
            self.inner.step(np.full(2, action))
            return super().step(action)
        def close(self):
            self.inner.close()
    fleet = envfleet.make([OuterEnv] * 2, backend="process", workers=2)
    fleet.reset(seed=0)
    ready(fleet)
    print(fleet.step(np.zeros(2, int))[1].tolist(), flush=True)
    ENDING
    """
    for ending in ("fleet.close()", "import os; os._exit(0)"):
        with started(tmp_path / "main.py", body.replace("ENDING", ending)) as (process, pids):
            everyone = [*pids, *family(process.pid)]
            output, errors = process.communicate(timeout=30)
            assert (process.returncode, output, errors) == (0, "[1.0, 1.0]\n", "")
            assert not wait_gone(everyone)


def test_environments_may_have_children_of_their_own(tmp_path: Path) -> None:
    """Workers are no daemons in multiprocessing's sense: an environment may start processes (minerl #113)."""
    body = """
    import subprocess
    class ParentEnv(CountingEnv):
        def __init__(self):
            super().__init__()
            self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        def close(self):
            self.child.kill()
            self.child.wait()
    fleet = envfleet.make([ParentEnv] * 2, backend="process", workers=2)
    ready(fleet)
    fleet.reset(seed=0)
    children = [child.pid for child in fleet.get_attr("child")] if False else fleet.call("render")
    fleet.close()
    """
    with started(tmp_path / "main.py", body) as (process, pids):
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")
        assert not wait_gone(pids)
