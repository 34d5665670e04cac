"""Fixtures for every suite: the backends to test on, and a check that nothing leaks."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import gc
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import HealthCheck, settings
from tests.fleets import KINDS
from tests.waiting import PATIENCE_S

from envfleet.registry import BACKENDS as REGISTERED

# How long an example takes says nothing on a machine that is busy with something else.
settings.register_profile("envfleet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("envfleet")

# Networks here are small, and the threads of several test processes would wait for each other's cores in busy loops.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Numba formats thousands of messages that are never shown; highlighting them takes longer than the rest.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")

if sys.version_info < (3, 11, 8) or (3, 12) <= sys.version_info < (3, 12, 2):

    def _parse_again(*args: Any, **kwargs: Any) -> ast.AST:
        """Repeat `ast.parse` when threads that parse at the same time disturb it (CPython #106905).

        Otherwise pytest ends with an internal error while it formats a failure.
        """
        for _ in range(10):
            with contextlib.suppress(SystemError):
                return _parse(*args, **kwargs)
        return _parse(*args, **kwargs)

    _parse, ast.parse = ast.parse, _parse_again  # type: ignore[assignment]

with contextlib.suppress(ImportError):  # services run on libuv, whose first loop opens a pipe that is never closed
    import uvloop

    uvloop.new_event_loop().close()

# A shell that runs the tests in the background has Ctrl-C ignored, and every process started from here would, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = (
    "test_examples.py",
    "test_head_lost.py",
    "test_batch.py",
    "test_policies.py",
    "test_chaos.py",
    "test_machine.py",
)


@dataclasses.dataclass(frozen=True)
class Backend:
    """A backend with a number of workers; calling it makes a fleet on it. `"adopted"` adopts Gymnasium's own."""

    name: Any  # one of the names make() knows, or "adopted"
    workers: int | None = None

    def __call__(self, env_fns: Any, **options: Any) -> Any:
        import envfleet

        if self.name == "adopted":
            recorded = options.pop("record_episodes", False)
            return envfleet.adopt(SyncVectorEnv(env_fns, **options), record_episodes=recorded)
        workers = None if self.workers is None else min(self.workers, options.get("num_envs") or len(env_fns))
        return envfleet.make(env_fns, backend=self.name, **{"workers": workers, **options})

    def __str__(self) -> str:
        return self.name if self.workers is None else f"{self.name}-{self.workers}"

    @property
    def has_processes(self) -> bool:
        return "step_timeout_s" in REGISTERED[self.name].options


# A cluster takes its own fixtures, and a process that Ray was in cannot fork safely: tests/ray has that backend.
_PYTHON = [one for one in REGISTERED.values() if "shared" in one.options and one.name != "ray"]
SERIAL, ADOPTED = Backend("serial"), Backend("adopted")
SPREAD = [one.name for one in _PYTHON if "workers" in one.options]
BACKENDS = (SERIAL, *(Backend(name, workers) for name in SPREAD for workers in (1, 3)))
ONE_OF_EACH = (SERIAL, *(Backend(name, 2) for name in SPREAD))


@pytest.fixture(params=ONE_OF_EACH, ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    """One of each backend of Python sub-environments, with two workers."""
    return request.param


@pytest.fixture(params=tuple(AutoresetMode), ids=lambda mode: mode.name.lower())
def autoreset_mode(request: pytest.FixtureRequest) -> AutoresetMode:
    return request.param


@pytest.fixture(scope="module")
def make_remote_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """CartPole that lives in a service of this process; called as those of `tests.fleets.KINDS`."""
    from tests.service.serving import make_settings, serve_here

    import envfleet

    with serve_here(make_settings(tmp_path_factory.mktemp("service"))) as (client, service):
        url, token = str(client.base_url).rstrip("/"), service.tokens.create("ann")
        yield functools.partial(envfleet.connect, url, "CartPole-v1", token=token)


@pytest.fixture(params=[*KINDS, "remote"])
def make_fleet(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """CartPole on every kind of fleet, called with `num_envs`, `autoreset_mode` and `max_episode_steps`."""
    if request.param == "remote":
        return request.getfixturevalue("make_remote_fleet")
    return KINDS[request.param]


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """Small networks are slower with more threads, and far slower on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def no_plots() -> Iterator[None]:
    """Leave out the plots at the end of a run, which take longer than short runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("envfleet.training.single_run.plot_runs", lambda runs: [])
        yield


@pytest.fixture
def check_without_indices(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return `check_kernel` without its runs in code that checks indices, for which it compiles once more."""
    from envfleet.testing.check_kernel import _Trial, check_kernel

    for name in ("check_indices", "check_gymnasium"):
        monkeypatch.setattr(_Trial, name, lambda _self: None)
    return check_kernel


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first, then the others by number of tests: workers, which get whole files, end together."""
    if not hasattr(config, "workerinput"):
        return  # a process alone keeps folders together, as tests/ray and tests/rllib share a cluster
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path.name not in LONGEST, -sizes[item.path]))


# ------------------------------------------------------------------------------------------------ leaks


@dataclasses.dataclass(frozen=True)
class Resources:
    """Resources of this process that a fleet might leak."""

    children: frozenset[str]
    threads: frozenset[str]
    shared_memory: frozenset[str]
    descriptors: frozenset[str]

    def beyond(self, before: Resources) -> dict[str, list[str]]:
        """Return the resources that are not in `before`."""
        leaks = {name: getattr(self, name) - then for name, then in vars(before).items()}
        if leaks["shared_memory"]:
            leaks["shared_memory"] -= set(_used_by_others())
        return {name: sorted(more) for name, more in leaks.items() if more}


def take_stock() -> Resources:
    """List what this process holds at this moment, but for the fork servers, which live as long as the program."""
    from envfleet.workers.transports.launch import server

    pid = None if server._process is None else server._process.pid
    fds = [] if server._control is None else [server._control.fileno()]
    for branch in server._branches.values():
        fds += [branch.control.fileno(), branch.leash]
    return Resources(
        children=frozenset(_children(pid)),
        threads=frozenset(f"{thread.name} ({thread.ident})" for thread in threading.enumerate()),
        # A database keeps some of its names while none of its processes has them mapped.
        shared_memory=frozenset(str(path) for path in Path("/dev/shm").iterdir() if "PostgreSQL" not in path.name),
        descriptors=frozenset(_descriptors(set(map(str, fds)))),
    )


def _children(server_pid: int | None) -> Iterator[str]:
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(child.pid) != server_pid:  # each worker is in a separate session
                yield f"{child.pid} {' '.join(child.cmdline())[:120]}"


def _descriptors(server_fds: set[str]) -> Iterator[str]:
    """Pipes, sockets, anonymous and deleted files; files that libraries open are ignored."""
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(fd.readlink())
            is_ours = not target.startswith("/") or target.startswith("/memfd:") or target.endswith("(deleted)")
            if is_ours and fd.name not in server_fds:
                yield f"{fd.name} -> {target}"


def _used_by_others() -> Iterator[str]:
    """Paths that processes outside our own family have mapped: theirs in /dev/shm come and go."""
    family = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    for process in psutil.process_iter():
        if process.pid not in family:
            with contextlib.suppress(psutil.Error, OSError):
                yield from (line.split()[-1] for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines())


@pytest.fixture(scope="session", autouse=True)
def _folders(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[None]:
    """Replay files of failures provoked here, and logs of Stable-Baselines3, go where pytest cleans up.

    Ray has a separate folder, since the paths of its sockets must be short. It holds addresses of clusters, which later
    programs would try to reach, and the token that Ray would otherwise write to the home folder.
    """
    os.environ["ENVFLEET_REPLAY_DIR"] = str(tmp_path_factory.mktemp("replay"))
    os.environ["SB3_LOGDIR"] = str(tmp_path_factory.mktemp("sb3"))
    folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
    pytestconfig.add_cleanup(folder.cleanup)  # after all fixtures and hooks, one of which ends the cluster
    token = Path(folder.name, "token")
    token.write_text(secrets.token_hex(32), encoding="utf-8")
    os.environ["RAY_TMPDIR"], os.environ["RAY_AUTH_TOKEN_PATH"] = folder.name, str(token)
    yield
    if "ray" not in sys.modules:  # no cluster of this process; xdist's workers end without the cleanups
        folder.cleanup()


@pytest.fixture(scope="module", autouse=True)
def _nothing_leaks(_folders: None) -> Iterator[None]:
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
