"""Whole programs that are ended: Ctrl-C once and twice, an owner that is killed, or that exits without closing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.fault.programs import family, started, wait_gone
from tests.waiting import PATIENCE_S, wait_until

# What the script does while the signal comes; it leaves a file once it does.
BODIES = {
    "busy": """
    fleet = envfleet.make([functools.partial(CountingEnv, 1000)] * 4, backend="{backend}", workers={workers})
    fleet.reset(seed=0)
    ready(fleet)
    while True:
        fleet.step(np.zeros(4, int))
        pathlib.Path("{marker}").touch()
""",
    "step": """
    env_fn = functools.partial(FaultyEnv, "{fault}", once="{marker}")
    fleet = envfleet.make([env_fn] * 4, backend="{backend}", workers={workers})
    fleet.reset(seed=0)
    ready(fleet)
    fleet.step(np.zeros(4, int))
""",
    "reset": """
    env_fn = functools.partial(FaultyEnv, "{fault}", "reset", once="{marker}")
    fleet = envfleet.make([env_fn] * 4, backend="{backend}", workers={workers})
    ready(fleet)
    fleet.reset(seed=0)
""",
    "idle": """
    fleet = envfleet.make([CountingEnv] * 4, backend="{backend}", workers={workers})
    fleet.reset(seed=0)
    ready(fleet)
    pathlib.Path("{marker}").touch()
    time.sleep(3600)
""",
    "recv": """
    env_fn = functools.partial(FaultyEnv, "{fault}", once="{marker}")
    fleet = envfleet.make([env_fn] * 4, backend="{backend}", workers={workers})
    fleet.reset(seed=0)
    fleet.send(np.zeros(4, int))
    ready(fleet)
    fleet.recv(timeout_s=3600)
""",
    "close": """
    env_fn = functools.partial(FaultyEnv, "{fault}", "close", once="{marker}")
    fleet = envfleet.make([env_fn] * 4, backend="{backend}", workers={workers})
    fleet.reset(seed=0)
    ready(fleet)
    fleet.close()
""",
    "make": """
    print("pids", flush=True)
    env_fn = functools.partial(FaultyEnv, "{fault}", "constructor", once="{marker}")
    envfleet.make([env_fn] * 4, backend="{backend}", workers={workers})
""",
}


def body_of(what: str, marker: Path, backend: str = "process", fault: str = "hang") -> str:
    workers = "None" if backend == "serial" else "2"
    return BODIES[what].format(backend=backend, workers=workers, fault=fault, marker=marker)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    ("backend", "what"),
    [
        *(("process", what) for what in BODIES),
        *(("thread", what) for what in ("step", "recv", "make", "close")),
        *(("serial", what) for what in ("step", "make", "close")),
    ],
)
def test_ctrl_c(tmp_path: Path, backend: str, what: str, times: int) -> None:
    """SIGINT to the process group, as a terminal sends it: the owner's traceback alone, and nothing is left."""
    marker = tmp_path / "there"
    with started(tmp_path / "main.py", body_of(what, marker, backend)) as (process, pids):
        wait_until(marker.exists)
        everyone = [*pids, *family(process.pid)]
        for _ in range(times):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.02 * (times - 1))
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode in (-signal.SIGINT, 130, 1)
        # The second may also strike while Python itself prints the first, which prints a separate line.
        assert errors.rstrip(": \n").endswith(("KeyboardInterrupt", "lost sys.stderr")[:times]), errors
        # The second may strike while the first is dealt with, which Python shows as two parts.
        assert 1 <= errors.count("Traceback (most recent call last)") <= times, errors
        assert len([line for line in errors.splitlines() if line.strip("~^ ")]) < 50, errors
        assert "envfleet worker" not in errors
        assert not wait_gone(everyone)


def test_ctrl_c_may_be_caught_and_the_fleet_closed(tmp_path: Path) -> None:
    """The usual pattern: stop training on Ctrl-C, save, close."""
    marker = tmp_path / "there"
    body = f"""
    with envfleet.make([functools.partial(CountingEnv, 1000)] * 4, backend="process", workers=2) as fleet:
        fleet.reset(seed=0)
        ready(fleet)
        try:
            while True:
                fleet.step(np.zeros(4, int))
                pathlib.Path("{marker}").touch()
        except KeyboardInterrupt:
            print("stopping", flush=True)
    print("closed", flush=True)
    """
    with started(tmp_path / "main.py", body) as (process, pids):
        wait_until(marker.exists)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, errors) == (0, "")
        assert output.split() == ["stopping", "closed"]
        assert not wait_gone(pids)


KILLED = [("step", fault, signal.SIGKILL) for fault in ("hang", "spin", "native_loop")]
KILLED += [(what, "hang", signal.SIGKILL) for what in ("idle", "busy", "make")] + [("busy", "hang", signal.SIGTERM)]


@pytest.mark.parametrize(("what", "fault", "number"), KILLED)
def test_owner_killed(tmp_path: Path, what: str, fault: str, number: signal.Signals) -> None:
    """A signal to the owner alone, whatever the workers are doing: workers end soon."""
    marker = tmp_path / "there"
    before = set(Path("/dev/shm").iterdir())
    with started(tmp_path / "main.py", body_of(what, marker, fault=fault)) as (process, pids):
        wait_until(marker.exists)
        everyone = family(process.pid)
        assert len(everyone) >= 2
        process.send_signal(number)
        process.wait(timeout=PATIENCE_S)
        assert not wait_gone([*pids, *everyone])
    assert not {path for path in set(Path("/dev/shm").iterdir()) - before if "envfleet" in path.name}


@pytest.mark.parametrize(("ending", "code"), [("", 0), ("sys.exit(4)", 4), ("import os; os._exit(5)", 5)])
def test_owner_exits_without_closing(tmp_path: Path, ending: str, code: int) -> None:
    body = f"""
    fleet = envfleet.make([CountingEnv] * 4, backend="process", workers=2)
    fleet.reset(seed=0)
    fleet.send(np.zeros(4, int))
    ready(fleet)
    {ending}
    """
    with started(tmp_path / "main.py", body) as (process, pids):
        everyone = [*pids, *family(process.pid)]
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, errors) == (code, "")
        assert not wait_gone(everyone)


def test_a_forked_child_that_outlives_the_owner(tmp_path: Path) -> None:
    """A data loader's process, say: it does not keep the workers alive."""
    body = """
    import os
    fleet = envfleet.make([CountingEnv] * 4, backend="process", workers=2)
    fleet.reset(seed=0)
    if os.fork() == 0:
        time.sleep(3600)
        os._exit(0)
    ready(fleet)
    time.sleep(3600)
    """
    with started(tmp_path / "main.py", body) as (process, pids):
        process.kill()
        process.wait(timeout=PATIENCE_S)
        assert not wait_gone(pids)
