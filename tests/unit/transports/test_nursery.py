"""No worker outlives its owner, no nursery its use, and nothing is left behind, however the processes end.

What needs an owner to die, or a nursery of its own, runs in a separate Python.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.transports.own_python import (
    PATIENCE_S,
    TARGETS,
    is_running,
    run_python,
    start_python,
    wait_until,
)

from envfleet.transports.launch import StartMethod

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.name != "posix", reason="worker processes need POSIX"),
]


CYCLES = """
import sys
from envfleet.transports.launch import hold_nursery, launch
from tests.unit.transports.own_python import children, descriptors

def cycle(times):
    for _ in range(times):
        handle = launch("{targets}:nothing", b"", [], start_method=sys.argv[1], name="test")
        assert handle.exitcode(20) == 0
        handle.close()

cycle(1)
assert children() == [], "the last handle is closed, so there is no nursery"
before = descriptors()
cycle(5)
assert (children(), descriptors()) == ([], before)
with hold_nursery():
    cycle(1)
    before, nursery = descriptors(), children()
    assert len(nursery) == 1
    cycle(int(sys.argv[2]))
    assert (children(), descriptors()) == (nursery, before)
assert children() == []
"""


def test_nothing_is_left_after_many_cycles(method: StartMethod) -> None:
    times = 30 if method == "spawn" else 100
    result = run_python(CYCLES.format(targets=TARGETS), method, str(times))
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


# --- the owner dies --------------------------------------------------------------------------------------------------

OWNER = """
import os, sys, time
from envfleet.transports import supervision
from envfleet.transports.launch import launch
read, write = os.pipe()
handles = [launch("{targets}:announce_and_hang", sys.argv[2].encode(), [write], start_method=sys.argv[1], name="t")
           for _ in range(2)]
pids = ""
while len(pids.split()) < 2:
    pids += os.read(read, 100).decode()
{more}
print(pids, supervision.supervision.link().process.pid, flush=True)
time.sleep(1000)
"""


StartOwner = Callable[..., tuple[subprocess.Popen[str], list[int]]]


@pytest.fixture
def start_owner(method: StartMethod) -> Iterator[StartOwner]:
    """Start an owner of two workers; returns it and the pids of the workers and the nursery."""
    owners: list[subprocess.Popen[str]] = []
    everybody: list[int] = []

    def start(how: str, more: str = "", **options: Any) -> tuple[subprocess.Popen[str], list[int]]:
        owner = start_python(OWNER.format(targets=TARGETS, more=more), method, how, **options)
        owners.append(owner)
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        everybody.extend(pids)
        if len(pids) < 3:
            owner.kill()
            pytest.fail(owner.communicate()[1])
        assert all(map(is_running, pids))
        return owner, pids

    yield start
    for pid in everybody:  # only if the test failed
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for owner in owners:
        owner.kill()
        owner.wait()
        for stream in (owner.stdout, owner.stderr):
            assert stream is not None
            stream.close()


@pytest.mark.parametrize("how", ["busy", "sleep", "gil"])
def test_owner_killed(start_owner: StartOwner, how: str) -> None:
    owner, pids = start_owner(how)
    owner.kill()
    assert wait_until(lambda: not any(map(is_running, pids)), PATIENCE_S) < 2.0
    out, err = owner.communicate(timeout=5)  # end-of-file: nobody holds its output any more
    assert out + err == ""


def test_owner_killed_while_its_forked_child_lives_on(start_owner: StartOwner) -> None:
    owner, pids = start_owner("busy", more="if os.fork() == 0:\n    time.sleep(5)\n    os._exit(0)")
    owner.kill()
    assert wait_until(lambda: not any(map(is_running, pids)), PATIENCE_S) < 2.0


def test_owner_raises(start_owner: StartOwner) -> None:
    owner, pids = start_owner("gil")
    owner.send_signal(signal.SIGINT)  # an exception it does not catch: exit handlers run
    err = owner.communicate(timeout=PATIENCE_S)[1]
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert err.count("Traceback") == 1
    wait_until(lambda: not any(map(is_running, pids)), 1.0)


def test_ctrl_c_reaches_the_owner_only(start_owner: StartOwner) -> None:
    more = """
import signal
def on_interrupt(*_):
    print([handle.is_alive() for handle in handles], flush=True)
    for handle in handles:
        handle.close()
    print([handle.exitcode() for handle in handles], flush=True)
    os._exit(0)
signal.signal(signal.SIGINT, on_interrupt)
"""
    owner, pids = start_owner("sleep", more, start_new_session=True)
    os.killpg(owner.pid, signal.SIGINT)
    out, err = owner.communicate(timeout=PATIENCE_S)
    assert out.splitlines() == ["[True, True]", "[-9, -9]"]
    assert err == ""
    assert not any(map(is_running, pids))


def test_sigterm_to_the_group(start_owner: StartOwner) -> None:
    owner, pids = start_owner("busy", start_new_session=True)  # these workers ignore SIGTERM
    os.killpg(owner.pid, signal.SIGTERM)
    assert wait_until(lambda: not any(map(is_running, pids)), PATIENCE_S) < 2.0


def test_interrupt_while_starting(method: StartMethod) -> None:
    code = f"""
from envfleet.transports.launch import launch
print("go", flush=True)
handles = [launch("{TARGETS}:nothing", b"", [], start_method="{method}", name="t") for _ in range(500)]
"""
    owner = start_python(code, start_new_session=True)
    assert owner.stdout is not None
    owner.stdout.readline()
    time.sleep(0.15)
    os.killpg(owner.pid, signal.SIGINT)
    _, err = owner.communicate(timeout=PATIENCE_S)
    assert err.count("KeyboardInterrupt") == 1, err
    assert err.count("Traceback") == 1, err


# --- forks of the owner, and an end of the nursery -------------------------------------------------------------------


def test_after_fork_in_the_owner(method: StartMethod) -> None:
    code = """
import os, sys
from envfleet.transports.launch import launch
from tests.unit.transports.own_python import children
read, write = os.pipe()
start = lambda target: launch("{targets}:" + target, b"sleep", [write], start_method=sys.argv[1], name="t")
handle = start("announce_and_hang")
os.read(read, 100)
pid = os.fork()
if pid == 0:
    handle.close()  # not ours: nothing happens
    mine = start("nothing")
    code = mine.exitcode(20)
    mine.close()
    sys.exit(code or len(children()))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert handle.is_alive()
handle.close()
assert handle.exitcode() == -9
"""
    result = run_python(code.format(targets=TARGETS), method)
    assert (result.returncode, result.stderr) == (0, "")


NURSERY_KILLED = """
import os, signal, sys
from envfleet.transports.launch import launch, supervision
read, write = os.pipe()
start = lambda target, how: launch("{targets}:" + target, how, [write], start_method=sys.argv[1], name="t")
old = start("announce_and_hang", b"gil")
os.read(read, 100)
nursery = supervision.link().process
nursery.kill()
if sys.argv[2] == "wait":  # otherwise the next launch may still find it dying
    nursery.wait()
new = start("exit_with", b"4")
assert new.exitcode(20) == 4
new.close()
assert old.is_alive()
if sys.argv[3] == "owner dies":
    print(old.pid, supervision.link().process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
os.kill(old.pid, signal.SIGKILL)
assert old.join(1.0)
expected = -signal.SIGKILL if sys.argv[1] == "fork" else None
assert old.exitcode() == expected, old.exitcode()
old.close()
print("end")
"""


@pytest.mark.parametrize("pause", ["wait", "go on"])
def test_nursery_killed(method: StartMethod, pause: str) -> None:
    result = run_python(NURSERY_KILLED.format(targets=TARGETS), method, pause, "owner lives")
    assert (result.stdout, result.stderr) == ("end\n", "")


def test_a_new_nursery_adopts_the_workers_of_a_killed_one(method: StartMethod) -> None:
    result = run_python(NURSERY_KILLED.format(targets=TARGETS), method, "wait", "owner dies")
    pids = [int(word) for word in result.stdout.split()]
    assert len(pids) == 2, result.stderr
    wait_until(lambda: not any(map(is_running, pids)), 2.0)


def test_nursery_that_cannot_live(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("import os; os._exit(9)")  # as a broken plug-in might
    code = f"""
import sys
del sys.modules["numpy"]
sys.path.insert(0, {str(tmp_path)!r})
from envfleet.transports.launch import launch
launch("{TARGETS}:nothing", b"", [], start_method="forkserver", name="t")
"""
    result = run_python("import numpy, envfleet.transports.launch" + code)
    assert 'start_method="spawn"' in result.stderr
    assert "the worker nursery exited with code 9" in result.stderr


# --- platforms without pidfds ----------------------------------------------------------------------------------------

WITHOUT_PIDFD = """
import os, signal, sys, time
from envfleet.transports.launch import launch
assert not hasattr(os, "pidfd_open")
read, write = os.pipe()
start = lambda target, how=b"": launch("{targets}:" + target, how, [write], start_method=sys.argv[1], name="t")
codes = []
for _ in range(20):
    handle = start("exit_with", b"6")
    codes.append(handle.exitcode(20))
    handle.close()
assert codes == [6] * 20, codes
handle = start("announce_and_hang", b"gil")
os.read(read, 100)
handle.send_signal(signal.SIGTERM)
assert not handle.join(0.1)
handle.kill()
assert handle.join(1.0)
assert handle.exitcode() == -9
handle.kill()
handle.close()
handle = start("fork_a_child")  # which holds what a fork inherits
assert handle.exitcode(20) == 0
child = int(os.read(read, 100))
os.kill(child, 0)
os.kill(child, signal.SIGKILL)
handle.close()
print("end", flush=True)
"""


@pytest.fixture
def without_pidfd(tmp_path: Path) -> str:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\nif hasattr(os, 'pidfd_open'):\n    del os.pidfd_open, signal.pidfd_send_signal\n"
    )
    return str(tmp_path)


def test_without_pidfd(method: StartMethod, without_pidfd: str) -> None:
    result = run_python(WITHOUT_PIDFD.format(targets=TARGETS), method, path=without_pidfd)
    assert (result.stdout, result.stderr) == ("end\n", "")


def test_without_pidfd_owner_killed(start_owner: StartOwner, without_pidfd: str) -> None:
    owner, pids = start_owner("gil", path=without_pidfd)
    owner.kill()
    assert wait_until(lambda: not any(map(is_running, pids)), PATIENCE_S) < 2.0


def test_without_pidfd_nursery_killed(method: StartMethod, without_pidfd: str) -> None:
    result = run_python(NURSERY_KILLED.format(targets=TARGETS), method, "wait", "owner lives", path=without_pidfd)
    assert (result.stdout, result.stderr) == ("end\n", "")
