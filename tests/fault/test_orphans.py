"""Processes that environments start, such as simulators, end with the worker, with the owner, and with the program."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.fault.programs import is_running, started, wait_gone
from tests.waiting import PATIENCE_S, wait_until

PROGRAM = """
import os, signal, subprocess

class SimulatorEnv(CountingEnv):
    def __init__(self, close_s=0.0):
        super().__init__(1000)
        self.close_s = close_s
        self.simulator = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        self.log("started", self.simulator.pid)

    def log(self, *words):
        with open("log", "a") as file:
            print(*words, file=file)

    def step(self, action):
        if action == 3:
            self.log("hangs")
            time.sleep(3600)
        return super().step(action)

    def close(self):
        time.sleep(self.close_s)
        self.log("closed", self.simulator.pid)

fleet = envfleet.make(functools.partial(SimulatorEnv{ARGUMENT}), 2, backend="process", workers=2, OPTIONS)
fleet.reset(seed=0)
ready(fleet)
"""


def program(body: str, argument: str = "", options: str = "") -> str:
    return PROGRAM.replace("{ARGUMENT}", argument).replace("OPTIONS", options) + body


def read_log(folder: Path, word: str) -> list[int]:
    lines = (folder / "log").read_text().splitlines()
    return [int(line.split()[-1]) for line in lines if line.startswith(word)]


@pytest.mark.parametrize("whom", ["owner", "owner and group"])
def test_the_owner_is_killed(tmp_path: Path, whom: str) -> None:
    """Environments are closed, which these do without ending their simulator, and what is left is ended."""
    with started(tmp_path / "main.py", program("time.sleep(3600)"), cwd=tmp_path) as (process, pids):
        simulators = read_log(tmp_path, "started")
        end = os.kill if whom == "owner" else os.killpg
        end(process.pid, signal.SIGKILL)
        assert not wait_gone([*pids, *simulators])
    assert len(simulators) == 2
    assert sorted(read_log(tmp_path, "closed")) == sorted(simulators)


@pytest.mark.parametrize(("argument", "body"), [(", 3600.0", "time.sleep(3600)"), ("", "fleet.step([3, 0])")])
def test_the_owner_is_killed_and_environments_do_not_close(tmp_path: Path, argument: str, body: str) -> None:
    """In the middle of a step, or of its close()."""
    with started(tmp_path / "main.py", program(body, argument), cwd=tmp_path) as (process, pids):
        wait_until(lambda: "step" not in body or "hangs" in (tmp_path / "log").read_text())
        process.kill()
        assert not wait_gone([*pids, *read_log(tmp_path, "started")])


def test_a_worker_is_killed(tmp_path: Path) -> None:
    """By a deadline, or from outside: its simulators end, those of its successor run until the fleet is closed."""
    body = """
for worker in (0, 1):
    os.kill(fleet.stats().workers[worker].pid, signal.SIGKILL)
    fleet.step([0, 0])
fleet.step([3, 0])
fleet.reset()
print("stepped", fleet.stats().restarts, flush=True)
sys.stdin.readline()
fleet.close()
print("closed", flush=True)
sys.stdin.readline()
"""
    options = 'on_failure="restart", step_timeout_s=5.0'
    with started(tmp_path / "main.py", program(body, options=options), cwd=tmp_path, stdin=-1) as (process, _):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "stepped 3\n"
        simulators = read_log(tmp_path, "started")
        assert len(simulators) == 5
        wait_until(lambda: sum(map(is_running, simulators)) == 2)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "closed\n"
        assert not wait_gone(simulators)


def test_an_open_fleet_is_closed_at_exit(tmp_path: Path) -> None:
    with started(tmp_path / "main.py", program(""), cwd=tmp_path) as (process, pids):
        simulators = read_log(tmp_path, "started")
        process.wait(PATIENCE_S)
        assert sorted(read_log(tmp_path, "closed")) == sorted(simulators)
        assert not wait_gone([*pids, *simulators])


def test_exit_does_not_wait_for_hanging_environments(tmp_path: Path) -> None:
    with started(tmp_path / "main.py", program("", ", 3600.0"), cwd=tmp_path) as (process, pids):
        simulators = read_log(tmp_path, "started")
        process.wait(PATIENCE_S)
        assert not wait_gone([*pids, *simulators])


def test_servers_and_owner_are_killed(tmp_path: Path) -> None:
    """With owner and servers dead, no environment gets time to close: the kernel ends all groups."""
    body = """
import psutil
for child in psutil.Process().children(recursive=True):
    if os.getsid(child.pid) == psutil.Process().children()[0].pid:
        child.kill()
print("killed", flush=True)
time.sleep(3600)
"""
    with started(tmp_path / "main.py", program(body), cwd=tmp_path) as (process, pids):
        assert process.stdout is not None
        assert process.stdout.readline() == "killed\n"
        assert all(map(is_running, pids))
        process.kill()
        assert not wait_gone([*pids, *read_log(tmp_path, "started")])
