"""Fixtures for every suite: the backends to test on, a warm nursery, and a check that nothing leaks."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, settings

# How long an example takes says nothing on a machine that is busy with something else.
settings.register_profile("envfleet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("envfleet")

# A shell that runs the tests in the background has Ctrl-C ignored, and every process started from here would, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PATIENCE_S = 5.0
LONGEST = ("test_examples.py", "test_head_lost.py", "test_simulator.py", "test_policies.py", "test_chaos.py")


@dataclasses.dataclass(frozen=True)
class Backend:
    """A backend with a number of workers; calling it makes a fleet on it."""

    name: Any  # one of the names make() knows
    workers: int | None = None

    def __call__(self, env_fns: Any, **options: Any) -> Any:
        import envfleet

        workers = None if self.workers is None else min(self.workers, options.get("num_envs") or len(env_fns))
        return envfleet.make(env_fns, backend=self.name, **{"workers": workers, **options})

    def __str__(self) -> str:
        return self.name if self.workers is None else f"{self.name}-{self.workers}"

    @property
    def has_processes(self) -> bool:
        return self.name == "process"


SERIAL = Backend("serial")
BACKENDS = (SERIAL, *(Backend(name, workers) for name in ("thread", "process") for workers in (1, 2, 3)))
ONE_OF_EACH = (SERIAL, Backend("thread", 2), Backend("process", 2))


@pytest.fixture(params=ONE_OF_EACH, ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    """One of each backend, with two workers."""
    return request.param


@pytest.fixture(params=BACKENDS, ids=str)
def every_backend(request: pytest.FixtureRequest) -> Backend:
    """Every backend with one, two and three workers."""
    return request.param


@pytest.fixture(params=tuple(AutoresetMode), ids=lambda mode: mode.name.lower())
def autoreset_mode(request: pytest.FixtureRequest) -> AutoresetMode:
    return request.param


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """Small networks are slower with more threads, and far slower on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, then the others by number of tests: workers, which get whole files, end together."""
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path.name not in LONGEST, -sizes[item.path]))


# ------------------------------------------------------------------------------------------------ leaks


@dataclasses.dataclass(frozen=True)
class Resources:
    """What this process holds that a fleet might forget to give back."""

    children: frozenset[str]
    threads: frozenset[str]
    shared_memory: frozenset[str]
    descriptors: frozenset[str]

    def beyond(self, before: Resources) -> dict[str, list[str]]:
        """What is here and was not before."""
        pairs = {name: (getattr(self, name), getattr(before, name)) for name in vars(self)}
        return {name: sorted(now - then) for name, (now, then) in pairs.items() if now - then}


def take_stock() -> Resources:
    """List what this process holds at this moment."""
    return Resources(
        children=frozenset(_children()),
        threads=frozenset(f"{thread.name} ({thread.ident})" for thread in threading.enumerate()),
        shared_memory=frozenset(_shared_memory()),
        descriptors=frozenset(_descriptors()),
    )


def _children() -> Iterator[str]:
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            yield f"{child.pid} {' '.join(child.cmdline())[:120]}"


def _descriptors() -> Iterator[str]:
    """Pipes, sockets, anonymous and deleted files; a library that opens a file for itself is no business of ours."""
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(fd.readlink())
            if not target.startswith("/") or target.startswith("/memfd:") or target.endswith("(deleted)"):
                yield f"{fd.name} -> {target}"


def _shared_memory() -> Iterator[str]:
    """Names in /dev/shm that no process outside our own family uses: those of others come and go."""
    names = {str(path) for path in Path("/dev/shm").glob("*")}
    if names:
        family = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
        for process in psutil.process_iter():
            if process.pid not in family:
                with contextlib.suppress(psutil.Error, OSError):
                    names -= {line.split()[-1] for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines()}
    yield from names


@pytest.fixture(scope="session", autouse=True)
def _folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Replay files of failures provoked here, and logs of Stable-Baselines3, go where pytest cleans up."""
    os.environ["ENVFLEET_REPLAY_DIR"] = str(tmp_path_factory.mktemp("replay"))
    os.environ["SB3_LOGDIR"] = str(tmp_path_factory.mktemp("sb3"))


@pytest.fixture(scope="session", autouse=True)
def _warm_nursery(_folders: None) -> Iterator[None]:
    """Keep the process that starts workers, so that a fleet of processes starts in milliseconds."""
    from envfleet.transports.launch import hold_nursery

    with hold_nursery():
        yield


@pytest.fixture(scope="module", autouse=True)
def _nothing_leaks(_warm_nursery: None) -> Iterator[None]:
    """After each test module: no process, thread, name in shared memory or descriptor that was not there before."""
    gc.collect()
    gc.freeze()  # what is here stays; or every collection, and there are hundreds, takes half a second
    before = take_stock()
    yield
    sys.last_traceback = sys.last_value = None  # pytest's memory of a failed test holds whatever that test held
    deadline = time.monotonic() + PATIENCE_S
    while True:
        gc.collect()
        leaked = take_stock().beyond(before)
        if not leaked:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind by this module: {leaked}")
        time.sleep(0.05)
