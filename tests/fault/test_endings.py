"""Whole programs that are ended: Ctrl-C, an owner that is killed, or that exits without closing."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from tests.fault.programs import family, started, wait_gone

pytestmark = pytest.mark.timeout(90)

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
