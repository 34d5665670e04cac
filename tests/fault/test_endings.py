"""Whole programs that are ended: Ctrl-C, an owner that is killed, or that exits without closing."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from tests.fault.programs import family, started, wait_gone, wait_until

pytestmark = pytest.mark.timeout(90)

# What the script does while the signal comes; it leaves a file once it does.
BUSY = """
    fleet = envfleet.make([functools.partial(CountingEnv, 1000)] * 4, backend="{backend}", workers={workers})
    fleet.reset(seed=0)
    ready(fleet)
    while True:
        fleet.step(np.zeros(4, int))
        pathlib.Path("{marker}").touch()
"""
HANGING = """
    env_fn = functools.partial(FaultyEnv, "{fault}", once="{marker}")
    fleet = envfleet.make([env_fn] * 4, backend="{backend}", workers={workers})
    fleet.reset(seed=0)
    ready(fleet)
    fleet.step(np.zeros(4, int))
"""
IDLE = """
    fleet = envfleet.make([CountingEnv] * 4, backend="{backend}", workers={workers})
    fleet.reset(seed=0)
    ready(fleet)
    pathlib.Path("{marker}").touch()
    time.sleep(60)
"""
SENT = """
    env_fn = functools.partial(FaultyEnv, "hang", once="{marker}")
    fleet = envfleet.make([env_fn] * 4, backend="{backend}", workers={workers})
    fleet.reset(seed=0)
    fleet.send(np.zeros(4, int))
    ready(fleet)
    fleet.recv(timeout_s=60)
"""
CLOSING = """
    env_fn = functools.partial(FaultyEnv, "hang", "close", once="{marker}")
    fleet = envfleet.make([env_fn] * 4, backend="{backend}", workers={workers})
    fleet.reset(seed=0)
    ready(fleet)
    fleet.close()
"""
CONSTRUCTING = """
    print("pids", flush=True)
    env_fn = functools.partial(FaultyEnv, "hang", "constructor", once="{marker}")
    envfleet.make([env_fn] * 4, backend="{backend}", workers={workers})
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
    marker = tmp_path / "there"
    workers = "None" if backend == "serial" else "2"
    body = BODIES[what].format(backend=backend, workers=workers, fault="hang", marker=marker)
    with started(tmp_path / "main.py", body) as (process, pids):
        wait_until(marker.exists)
        everyone = [*pids, *family(process.pid)]
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode in (-signal.SIGINT, 130, 1)
        assert errors.count("Traceback (most recent call last)") == 1, errors
        assert errors.rstrip().endswith("KeyboardInterrupt"), errors
        assert not wait_gone(everyone)


def test_ctrl_c_of_an_impatient_person(tmp_path: Path) -> None:
    """Again and again, while the first is still being dealt with: it may be loud, but nothing is left."""
    marker = tmp_path / "there"
    with started(tmp_path / "main.py", BUSY.format(backend="process", workers=2, marker=marker)) as (process, pids):
        wait_until(marker.exists)
        everyone = [*pids, *family(process.pid)]
        for _ in range(5):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.01)
        process.communicate(timeout=20)
        assert process.returncode != 0
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
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")
        assert output.split() == ["stopping", "closed"]
        assert not wait_gone(pids)


def test_after_a_caught_ctrl_c_no_reply_is_mixed_up(tmp_path: Path) -> None:
    """An interrupted step counts for nothing: after a reset, every answer is that of its own step."""
    marker, go_on = tmp_path / "there", tmp_path / "go-on"
    body = f"""
    class WaitingEnv(FaultyEnv):
        def step(self, action):
            if self._is_due("step"):
                while not pathlib.Path("{go_on}").exists():
                    time.sleep(0.001)
            return CountingEnv.step(self, action)
    env_fns = [functools.partial(WaitingEnv, "hang", once="{marker}", length=1000)] * 2
    fleet = envfleet.make(env_fns, backend="process", workers=2)
    fleet.reset(seed=0)
    ready(fleet)
    try:
        fleet.step(np.full(2, 1))
    except KeyboardInterrupt:
        pass
    try:
        fleet.step(np.full(2, 3))
    except envfleet.errors.ResetNeeded as error:
        print(type(error).__name__, flush=True)
    pathlib.Path("{go_on}").touch()
    fleet.reset(seed=0)
    for count in (1, 2):
        observations, rewards, *_ = fleet.step(np.full(2, 3))
        assert observations[:, [0, 3]].tolist() == [[count, 3]] * 2, observations
        assert np.allclose(rewards, count + 0.3), (rewards, observations)
    fleet.close()
    """
    with started(tmp_path / "main.py", body) as (process, _):
        wait_until(marker.exists)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, output, errors) == (0, "ResetNeeded\n", "")


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
    marker = tmp_path / "there"
    body = BODIES.get(what, HANGING).format(backend="process", workers=2, fault=what, marker=marker)
    before = {path.name for path in Path("/dev/shm").iterdir()}
    with started(tmp_path / "main.py", body) as (process, pids):
        wait_until(marker.exists)
        everyone = family(process.pid)
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
            _, errors = process.communicate(timeout=20)
            assert (process.returncode, errors) == (code, "")
            assert not wait_gone(pids)
