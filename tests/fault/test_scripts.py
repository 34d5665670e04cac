"""Whole programs: every way to start Python, and fleets among threads, forks and other fleets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fault.programs import family, started, wait_gone
from tests.waiting import PATIENCE_S

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
fleet = envfleet.make([lambda: MyEnv()] * 3 + [MyEnv], backend="process", workers=2)
fleet.reset(seed=0)
print(fleet.get_attr("length"), fleet.step(np.zeros(4, int))[0][:, 0].tolist())
fleet.close()
"""
EXPECTED = "main runs\n(7, 7, 7, 7) [1.0, 1.0, 1.0, 1.0]\n"


@pytest.mark.parametrize("way", ["script", "-c", "stdin", "-m"])
def test_unguarded_main(tmp_path: Path, way: str) -> None:
    """No `if __name__ == "__main__"`, classes and lambdas in __main__: the main module runs once."""
    (tmp_path / "main.py").write_text(UNGUARDED)
    arguments = {"script": ["main.py"], "-c": ["-c", UNGUARDED], "stdin": ["-"], "-m": ["-m", "main"]}[way]
    result = subprocess.run(
        [sys.executable, *arguments],
        input=UNGUARDED if way == "stdin" else None,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=tmp_path,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, EXPECTED, "")


REGISTERING = """
import gymnasium as gym
from envfleet.testing import CountingEnv

class Long(CountingEnv):
    pass

gym.register("Long-v0", entry_point="registering:Long", kwargs={"length": 9})
gym.register("Longer-v0", entry_point="registering:Long", kwargs={"length": 90})
"""
REGISTERED = """
import functools, threading
import gymnasium as gym
import numpy as np
import envfleet, registering
from envfleet.adapters.gymnasium import AsyncFleet
from envfleet.testing import CountingEnv

class Mine(CountingEnv):
    pass

class Unsendable(CountingEnv):
    lock = threading.Lock()

gym.register("Mine-v0", entry_point="__main__:Mine", kwargs={"length": 5})
gym.register("ByClass-v0", entry_point=Mine, kwargs={"length": 6}, max_episode_steps=4)
gym.register("Unsendable-v0", entry_point=Unsendable)
gym.registry["Longer-v0"].kwargs["length"] = 10
long = "Long"

def count(fleet):
    fleet.reset(seed=0)
    print(fleet.get_attr("length"), fleet.spec.max_episode_steps, fleet.plan.backend)
    fleet.close()

for env_id in ("Mine-v0", "ByClass-v0"):
    count(envfleet.make(env_id, 2, backend="process", workers=1))
    count(envfleet.make(lambda: gym.make(env_id), 2, backend="process", workers=2))
count(envfleet.make(functools.partial(gym.make, "Long-v0"), 2, backend="process", workers=1))
count(AsyncFleet([lambda: gym.make(f"{long}er-v0")] * 2, workers=1))  # both in one worker
count(envfleet.make(lambda: gym.make("Long-v0"), 2, step_timeout_s=60))
"""


def test_ids_that_the_program_registered(tmp_path: Path) -> None:
    """By itself, by a package that it imported, or by changing an entry: callables find them in the workers, too."""
    (tmp_path / "registering.py").write_text(REGISTERING)
    (tmp_path / "main.py").write_text(REGISTERED)
    result = subprocess.run(
        [sys.executable, "main.py"], capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    own_class, by_class = ["(5, 5) None process"] * 2, ["(6, 6) 4 process"] * 2
    others = ["(9, 9) None process", "(10, 10) None process", "(9, 9) None process"]
    assert result.stdout.splitlines() == [*own_class, *by_class, *others]


MODULE = """
import gymnasium as gym
import envfleet

class E(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return 0, {}

fleet = envfleet.make(ENV, 1, backend="process", workers=1)
fleet.close()
print("made", __name__)
"""


@pytest.mark.parametrize("env", ["E", "lambda: __import__('fleets_at_import').E()", "'fleets_at_import:E'"])
def test_a_module_that_makes_a_fleet_when_it_is_imported(tmp_path: Path, env: str) -> None:
    """Its workers import it as well: without an end, if each of them made a fleet again."""
    (tmp_path / "fleets_at_import.py").write_text(MODULE.replace("ENV", env))
    command = [sys.executable, "-c", "import fleets_at_import"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path, check=False)
    assert result.stderr.splitlines()[-1] == (
        "envfleet.errors.InvalidArgument: the module fleets_at_import makes a fleet when it is imported, and each "
        "worker that imports it would make another one: make the fleet in a function, or under "
        '`if __name__ == "__main__":`'
    )
    assert result.returncode == 1


def test_classes_as_a_notebook_defines_them(tmp_path: Path) -> None:
    """Cells compiled one by one into __main__ without a file, from a thread with an event loop, as Jupyter does."""
    code = f"""
import asyncio, sys, types
main = types.ModuleType("__main__")
sys.modules["__main__"] = main
cells = {UNGUARDED.split("print(", 1)[0].split(chr(10) * 2)!r}
cells.append({("print(" + UNGUARDED.split("print(", 1)[1])!r})
async def run():
    for number, cell in enumerate(cells):
        exec(compile(cell, f"<ipython-input-{{number}}>", "exec"), main.__dict__)
asyncio.run(run())
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, EXPECTED, "")


def test_from_a_thread(tmp_path: Path) -> None:
    """A fleet made and used in a thread that is not the main one, as in a web server or a notebook's executor."""
    body = """
    import threading
    def work():
        with envfleet.make([CountingEnv] * 4, backend="process", workers=2, step_timeout_s=240) as fleet:
            fleet.reset(seed=0)
            ready(fleet)
            print(fleet.step(np.zeros(4, int))[1].tolist(), flush=True)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    """
    with started(tmp_path / "main.py", body) as (process, pids):
        output, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, output, errors) == (0, "[1.0, 1.0, 1.0, 1.0]\n", "")
        assert not wait_gone(pids)


def test_the_helper_process_is_killed(tmp_path: Path) -> None:
    """The process that starts workers is killed: the fleet stays usable, and another one can be made."""
    body = """
    import os, signal, psutil
    fleet = envfleet.make([CountingEnv] * 4, backend="process", workers=2)
    fleet.reset(seed=0)
    ready(fleet)
    helpers = [child for child in psutil.Process().children() if "forkserver" in " ".join(child.cmdline())]
    for helper in helpers:
        helper.kill()
        while helper.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.001)
    print(len(helpers), fleet.step(np.zeros(4, int))[1].tolist(), flush=True)
    with envfleet.make([CountingEnv] * 4, backend="process", workers=2) as another:
        another.reset(seed=0)
        print(another.step(np.zeros(4, int))[1].tolist(), flush=True)
    os.kill(fleet.stats().workers[0].pid, signal.SIGKILL)
    try:
        fleet.step(np.zeros(4, int))
    except envfleet.errors.WorkerDied as error:
        print("died", error.worker)
    fleet.close()
    """
    with started(tmp_path / "main.py", body) as (process, pids):
        output, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, errors) == (0, "")
        assert output.split("\n") == ["1 [1.0, 1.0, 1.0, 1.0]", "[1.0, 1.0, 1.0, 1.0]", "died 0", ""]
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
        output, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, errors) == (0, "")
        assert output == "0 [1.0, 1.0, 1.0, 1.0]\n"
        assert not wait_gone(pids)


def test_a_fleet_within_a_fleet(tmp_path: Path) -> None:
    """An environment that holds a process fleet, as a hierarchical one might."""
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
            output, errors = process.communicate(timeout=PATIENCE_S)
            assert (process.returncode, output, errors) == (0, "[1.0, 1.0]\n", "")
            assert not wait_gone(everyone)


def test_environments_may_have_children_of_their_own(tmp_path: Path) -> None:
    """Workers are not daemons in multiprocessing's sense: an environment may start processes (minerl #113)."""
    body = """
    import subprocess
    class ParentEnv(CountingEnv):
        def __init__(self):
            super().__init__()
            self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
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
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, errors) == (0, "")
        assert not wait_gone(pids)
