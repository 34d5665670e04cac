"""Mistakes recognised and explained before any process starts, and calls at the wrong moment."""

from __future__ import annotations

import contextlib
import copy
import functools
import pickle
import re
import resource
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from tests.conftest import Backend
from tests.fault.builders import StuckEnv
from tests.waiting import PATIENCE_S, wait_until

import envfleet
from envfleet.errors import CallPending, EnvfleetError, FleetClosed, InvalidArgument, SubEnvError, UnknownEnv
from envfleet.testing import CountingEnv
from envfleet.testing.envs import AttributeEnv, SpaceEnv

one = CountingEnv
BAD_ARGUMENTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "num_envs=0": (one, {"num_envs": 0}, "num_envs"),
    "num_envs=-1": (one, {"num_envs": -1}, "num_envs"),
    "num_envs=2.5": (one, {"num_envs": 2.5}, "num_envs"),
    "num_envs and another count": ([one] * 2, {"num_envs": 3}, "num_envs"),
    "no builders": ([], {}, "callable"),
    "workers=0": (one, {"num_envs": 2, "workers": 0}, "workers"),
    "workers=-2": (one, {"num_envs": 2, "workers": -2}, "workers"),
    "more workers than envs": (one, {"num_envs": 2, "workers": 3}, "workers"),
    "envs_per_worker=0": (one, {"num_envs": 2, "envs_per_worker": 0}, "envs_per_worker"),
    "contradiction": (one, {"num_envs": 5, "workers": 2, "envs_per_worker": 2}, "envs_per_worker"),
    "batch_size=0": (one, {"num_envs": 2, "batch_size": 0}, "batch_size"),
    "batch_size too large": (one, {"num_envs": 2, "batch_size": 3}, "batch_size"),
    "step_timeout_s=0": (one, {"num_envs": 2, "step_timeout_s": 0}, "step_timeout_s"),
    "max_restarts=-1": (one, {"num_envs": 2, "max_restarts": -1}, "max_restarts"),
    "on_failure": (one, {"num_envs": 2, "on_failure": "ignore"}, "on_failure"),
    "num_envs missing": ("CartPole-v1", {}, "num_envs is missing: pass the number of sub-environments"),
    "recycling of many": (one, {"num_envs": 2, "workers": 1, "recycle_episodes": 1}, "pass envs_per_worker=1"),
    "autoreset_mode": (one, {"num_envs": 2, "autoreset_mode": "sometimes"}, "autoreset_mode"),
    "unknown option": ("CartPole-v1", {"num_envs": 2, "workerz": 2}, "workerz"),
    "kwargs for a callable": (one, {"num_envs": 2, "length": 2}, "length"),
    "shared": (one, {"num_envs": 2, "shared": "prices"}, "shared is of type str, expected a dict"),
    "no environment": (42, {"num_envs": 2}, "42, expected a callable"),
    "an environment instead of a builder": (CountingEnv(), {"num_envs": 2}, "callable"),
}


@contextlib.contextmanager
def no_new_process() -> Iterator[None]:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_arguments(name: str) -> None:
    env, options, clue = BAD_ARGUMENTS[name]
    with no_new_process(), pytest.raises((EnvfleetError, TypeError), match=clue):
        envfleet.make(env, **{"backend": "process", **options})


def test_unknown_backend_and_environment() -> None:
    with no_new_process():
        with pytest.raises(InvalidArgument, match="backend='quantum': pass one of 'auto', 'serial'"):
            envfleet.make(one, num_envs=2, backend="quantum")  # type: ignore[arg-type]
        with pytest.raises(UnknownEnv, match=r"NoSuchEnv.*envfleet envs"):
            envfleet.make("NoSuchEnv-v0", num_envs=2, backend="process")
        with pytest.raises(gymnasium.error.UnregisteredEnv, match=r"v9.*close to it: CartPole-v1"):
            envfleet.make("CartPole-v9", num_envs=2, backend="process")
        clue = "close to it: OrderedDict, .*; the module 'collections' has no callable of that name"
        with pytest.raises(UnknownEnv, match=clue):
            envfleet.make("collections:OrderdDict", num_envs=2, backend="process")


def test_the_same_object_twice(backend: Backend) -> None:
    """The commonest beginner's mistake: a builder that returns the one environment it holds.

    Each worker process has a separate copy, so the mistake is found in workers with two of them.
    """
    env = CountingEnv()
    with pytest.raises(InvalidArgument, match="sub-environments 0 and 1 are the same object"):
        backend([lambda: env] * 4)
    if not backend.has_processes:
        with pytest.raises(InvalidArgument, match="sub-environments 0 and 1 are the same object"):
            backend([lambda: env] * 2)


def test_the_same_object_twice_behind_wrappers(backend: Backend) -> None:
    env = CountingEnv()
    with pytest.raises(EnvfleetError, match=r"same|twice"):
        backend([lambda: gymnasium.wrappers.TimeLimit(env, 3)] * 4)


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        ((("box", "discrete"), ("scalar", "discrete")), "observation_space"),
        ((("box", "discrete"), ("box", "box")), "action_space"),
    ],
)
def test_spaces_that_differ(backend: Backend, kinds: Any, name: str) -> None:
    """Found within one worker and between workers."""
    for places in ((0, 1, 0, 0), (0, 0, 0, 1)):
        with pytest.raises(EnvfleetError, match=name) as caught:
            backend([functools.partial(SpaceEnv, *kinds[place]) for place in places])
        assert str(places.index(1)) in str(caught.value)


def test_bounds_that_differ(backend: Backend) -> None:
    env_fns = [functools.partial(_BoundedEnv, 1.0 + index) for index in range(4)]
    with pytest.raises(EnvfleetError, match="observation_mode"):
        backend(env_fns)
    with backend(env_fns, observation_mode="different") as fleet:
        reference = gymnasium.vector.SyncVectorEnv(env_fns, observation_mode="different")
        assert fleet.observation_space == reference.observation_space
        fleet.reset(seed=0)


class _BoundedEnv(CountingEnv):
    def __init__(self, high: float) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-high, high, (5,), np.float64)


NOT_ENVIRONMENTS: dict[str, tuple[Any, str]] = {
    "nothing": (None, "return"),
    "a class": (CountingEnv, "class|instance"),
    "a number": (3, "int"),
}


@pytest.mark.parametrize("name", NOT_ENVIRONMENTS)
def test_builders_that_return_something_else(backend: Backend, name: str) -> None:
    value, clue = NOT_ENVIRONMENTS[name]
    with pytest.raises(EnvfleetError, match=clue) as caught:
        backend([CountingEnv, lambda: value])
    if isinstance(caught.value, SubEnvError):
        assert caught.value.env_index == 1


class _NoSpaces(CountingEnv):
    def __init__(self, name: str, value: Any) -> None:
        super().__init__()
        delattr(self, name)
        if value is not None:
            setattr(self, name, value)


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_an_environment_without_a_space(backend: Backend, name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^_NoSpaces has no {name}: set it in __init__$"):
        backend([functools.partial(_NoSpaces, name, None)] * 2)
    said = rf"^_NoSpaces has the {name} \(4,\), expected a gymnasium.Space: set it in __init__$"
    with pytest.raises(InvalidArgument, match=said):
        backend([functools.partial(_NoSpaces, name, (4,))] * 2)


# ------------------------------------------------------------------------------------------------ use after close


def test_what_is_applied_must_be_a_function(backend: Backend) -> None:
    with backend([CountingEnv] * 2) as fleet:
        with pytest.raises(InvalidArgument, match=r"^apply\(3\): pass a function that takes a sub-environment"):
            fleet.apply(3)
        assert len(fleet.apply(repr)) == 2


def test_names_and_limits_of_a_wrong_type(backend: Backend) -> None:
    with backend([CountingEnv] * 2) as fleet:
        for call in (lambda: fleet.call(3), lambda: fleet.get_attr(3), lambda: fleet.set_attr(3, 1)):
            with pytest.raises(InvalidArgument, match=r"\(\) got the name 3 \(type int\): pass a str"):
                call()
        with pytest.raises(InvalidArgument, match=r"^timeout='x': pass a number of seconds"):
            fleet.close(timeout="x")
        assert fleet.reset(seed=0)[0].shape[0] == 2


def test_use_after_close(backend: Backend) -> None:
    fleet = backend([AttributeEnv] * 2)
    fleet.reset(seed=0)
    fleet.close()
    calls: dict[str, Any] = {
        "reset": fleet.reset,
        "step": lambda: fleet.step(np.zeros(2, int)),
        "send": lambda: fleet.send(np.zeros(2, int)),
        "recv": fleet.recv,
        "reset_envs": lambda: fleet.reset_envs([0]),
        "call": lambda: fleet.call("describe"),
        "get_attr": lambda: fleet.get_attr("difficulty"),
        "set_attr": lambda: fleet.set_attr("difficulty", 2),
        "render": fleet.render,
        "get_state": fleet.get_state,
        "set_state": lambda: fleet.set_state([None, None]),
        "stacks": fleet.stacks,
        "rollout": lambda: fleet.rollout("random", 2),
        "apply": lambda: fleet.apply(repr),
    }
    for name, call in calls.items():
        with pytest.raises(FleetClosed, match=rf"^{'call' if name == 'get_attr' else name}\(\) on a closed fleet"):
            call()
    fleet.close()
    assert "closed" in repr(fleet)
    assert fleet.num_envs == 2


def test_what_a_closed_fleet_did_can_still_be_asked(backend: Backend) -> None:
    """It ended in an IndexError where workers are processes."""
    with backend([CountingEnv] * 2) as fleet:
        fleet.reset()
        fleet.step([0, 0])
        before = fleet.stats()
    assert fleet.stats() == before
    assert before.steps == sum(worker.steps for worker in before.workers) == 2


def test_with_closes_also_after_an_error(backend: Backend) -> None:
    with pytest.raises(ZeroDivisionError), backend([CountingEnv] * 2) as fleet:  # noqa: PT012
        fleet.reset(seed=0)
        fleet.send(np.zeros(2, int))
        raise ZeroDivisionError
    assert fleet.closed


class _HugeEnv(CountingEnv):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = _HugeBox()


class _HugeBox(spaces.Box):
    """A Box of 8 TiB that does not hold its bounds as arrays."""

    def __init__(self) -> None:
        super().__init__(0.0, 1.0, (1,), np.float64)
        self._shape = (1 << 40,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _HugeBox)

    __hash__ = None  # type: ignore[assignment]


def test_too_little_memory(backend: Backend) -> None:
    """Observations that cannot fit are refused before anything is written to them."""
    with pytest.raises((EnvfleetError, MemoryError), match=r"(?i)memory|GiB|TiB"):
        backend([_HugeEnv] * 2)


# ------------------------------------------------------------------------------------------------ two threads, a fork


def test_a_second_thread_gets_an_error_and_does_no_harm(backend: Backend, tmp_path: Path) -> None:
    """Any call of a second thread during a step is refused and does not disturb the first thread."""
    env_fns = [functools.partial(StuckEnv, tmp_path / "release", nth=2)] * 2
    with backend(env_fns) as fleet:
        fleet.reset(seed=0)
        fleet.step(np.zeros(2, int))
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(fleet.step(np.zeros(2, int))))
        thread.start()
        wait_until(lambda: "_stay" in fleet.stacks()[0])
        calls: tuple[Any, ...] = (
            lambda: fleet.step(np.zeros(2, int)),
            fleet.reset,
            lambda: fleet.reset_envs([0]),
            lambda: fleet.send(np.zeros(2, int)),
            fleet.recv,
            lambda: fleet.call("count"),
            fleet.get_state,
            fleet.close,
        )
        for call in calls:
            with pytest.raises(CallPending, match="while another thread is in this fleet: call it from one thread"):
                call()
        assert fleet.stats().steps == 2
        (tmp_path / "release").touch()
        thread.join()
        assert results[0][0][:, 0].tolist() == [2, 2]
        assert fleet.step(np.zeros(2, int))[0][:, 0].tolist() == [3, 3]


def test_two_threads_that_step_at_once() -> None:
    """At any timing, each step is made completely by one thread and the other one gets an error."""
    with Backend("process", 2)([functools.partial(CountingEnv, 10**6)] * 4) as fleet:
        fleet.reset(seed=0)
        counts: list[float] = []
        refused = [0]

        def work() -> None:
            while len(counts) < 100:
                try:
                    counts.append(_only(fleet.step(np.zeros(4, int))[0][:, 0]))
                except CallPending:
                    refused[0] += 1

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(counts) == list(range(1, len(counts) + 1))


def _only(values: np.ndarray) -> float:
    assert len(set(values.tolist())) == 1
    return float(values[0])


def test_another_thread_may_close_it_by_force(tmp_path: Path) -> None:
    """A thread inside the fleet gets an error."""
    fleet = Backend("process", 2)([functools.partial(StuckEnv, tmp_path / "never", nth=1)] * 2)
    fleet.reset(seed=0)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            fleet.step(np.zeros(2, int))
        except FleetClosed as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: "_stay" in fleet.stacks()[0])
    fleet.close(terminate=True)
    thread.join(PATIENCE_S)
    assert "closed" in str(errors[0])
    with pytest.raises(FleetClosed):
        fleet.step(np.zeros(2, int))


FORK = """
    import gc, os
    import envfleet
    from envfleet.testing import CountingEnv
    for backend in ("thread", "process"):
        fleet = envfleet.make(CountingEnv, 2, backend=backend, workers=2)
        fleet.reset()
        fork = os.fork()
        if not fork:
            for call in (lambda: fleet.step([0, 0]), fleet.reset, fleet.recv, lambda: fleet.call("count")):
                try:
                    call()
                except envfleet.errors.FleetBroken as error:
                    print(error, flush=True)
            fleet.close()
            fleet = None
            gc.collect()
            with envfleet.make(CountingEnv, 2, backend=backend, workers=2) as own:
                own.reset()
                print(own.step([0, 0])[1], "in the fork", flush=True)
            sys.exit(0)
        assert os.waitpid(fork, 0)[1] == 0
        print(fleet.step([0, 0])[1], fleet.episode_lengths, flush=True)
        fleet.close()
"""


def test_a_fork_leaves_the_workers_to_its_parent() -> None:
    """It hung (threads), or stepped the parent's sub-environments and closed them (processes)."""
    ignoring = (
        "import warnings\nwarnings.filterwarnings('ignore', 'This process .* is multi-threaded', DeprecationWarning)"
    )
    result = run_script(f"import sys\n{ignoring}\n{textwrap.dedent(FORK)}")  # Python warns since 3.12
    assert (result.returncode, result.stderr) == (0, "")
    assert len(re.findall(r"this fleet belongs to process \d+, .* is a fork: make a fleet here", result.stdout)) == 8
    assert result.stdout.count("[1. 1.] in the fork") == result.stdout.count("[1. 1.] [1 1]") == 2


def test_a_fleet_of_this_thread_can_be_used_in_a_fork() -> None:
    """A fork has separate copies of the objects."""
    code = """
    import os
    import envfleet
    fleet = envfleet.make("CartPole-v1", 2, backend="serial")
    fleet.reset(seed=0)
    fork = os.fork()
    if fork:
        os.waitpid(fork, 0)
    print(fleet.step([0, 1])[1], flush=True)
    """
    result = run_script(code)
    assert (result.stdout, result.returncode) == ("[1. 1.]\n" * 2, 0)


def test_a_fleet_is_neither_copied_nor_pickled(backend: Backend) -> None:
    with backend([CountingEnv] * 2) as fleet:
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(InvalidArgument, match=r"neither copied nor pickled.*set_state\(fleet\.get_state\(\)\)"):
                duplicate(fleet)


# ------------------------------------------------------------------------------------------------ too little


def run_script(code: str, **limits: tuple[int, int]) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        for name, values in limits.items():
            resource.setrlimit(getattr(resource, name), values)

    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        preexec_fn=limit,
    )


MAKE_MANY = """
    import resource
    import envfleet
    from envfleet.testing import CountingEnv
    from envfleet.workers.transports.launch import server
    for limit in {limits}:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, 4096))
        try:
            with envfleet.make(CountingEnv, num_envs={n}, workers={n}, backend="process") as fleet:
                fleet.reset()
                print("made", fleet.step([0] * {n})[1].sum())
        except envfleet.errors.InvalidArgument as error:
            print(error)
        server.end()  # or it would keep the limit that it was started with
"""


@pytest.mark.parametrize(("workers", "limits"), [(3, "(12, 19, 25, 64)"), (24, "(64, 256)")])
def test_too_few_descriptors(workers: int, limits: str) -> None:
    """Wherever it is that they run out: an error in words, nothing left behind, and with more it works."""
    result = run_script(MAKE_MANY.format(n=workers, limits=limits))
    assert (result.returncode, result.stderr) == (0, "")
    *errors, last = result.stdout.splitlines()
    assert last == f"made {workers}.0"
    messages = {re.sub("made .*", "", error) for error in errors} - {""}
    assert all("ulimit -n" in error and "use fewer workers" in error for error in messages)
    assert messages


@pytest.mark.parametrize("size", [1, 4096, 100_000])
def test_files_may_not_be_as_large_as_the_block(size: int) -> None:
    code = """
    import gymnasium, numpy as np, envfleet
    class Env(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, (50_000,), np.float64)
        action_space = gymnasium.spaces.Discrete(2)
    try:
        envfleet.make(Env, 4, backend="process", workers=1)
    except envfleet.errors.OutOfMemory as error:
        print(error)
    """
    result = run_script(code, RLIMIT_FSIZE=(size, size))
    assert (result.returncode, result.stderr) == (0, "")
    assert re.search(r"not enough shared memory \(\[Errno 27\] File too large.*expected .* use fewer", result.stdout)


WITHOUT_POSIX = """
    import os, select, signal, sys
    import cloudpickle, gymnasium, numpy.random

    for module, names in (
        (os, "fork register_at_fork memfd_create posix_fallocate sched_getaffinity sched_yield getuid pread pwrite"),
        (signal, "SIGUSR1 SIGUSR2 SIGALRM SIGKILL SIGCHLD setitimer pthread_sigmask"),
        (select, "poll"),
    ):
        for name in names.split():
            delattr(module, name)
    sys.modules.update({"fcntl": None, "resource": None})

    import envfleet
    from envfleet.testing import CountingEnv

    for backend in ("serial", "thread"):
        with envfleet.make("envfleet/CartPole-v1", 2, backend=backend) as fleet:
            fleet.reset(seed=0)
            print(fleet.plan.backend, fleet.step([0, 0])[1])
    for backend in ("serial", "thread", "auto", "process"):
        if backend == "auto":
            os.name = "nt"  # not before: modules that are imported now would find themselves on paths of Windows
        try:
            with envfleet.make(CountingEnv, 2, backend=backend) as fleet:
                fleet.reset(seed=0)
                print(fleet.plan.backend, fleet.step([0, 0])[1])
        except envfleet.errors.InvalidArgument as error:
            print(error)
"""


def test_systems_without_posix_have_serial_and_thread() -> None:
    result = run_script(WITHOUT_POSIX)
    lines = [line for line in result.stderr.splitlines() if not line.startswith("envfleet: compiling")]
    assert (result.returncode, lines) == (0, [])
    *good, last = result.stdout.splitlines()
    assert good == [*["serial [1. 1.]", "thread [1. 1.]"] * 2, "serial [1. 1.]"]
    assert 'pass backend="thread" or "serial"' in last


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_a_fleet_left_open_at_exit_prints_nothing(backend: str) -> None:
    """Neither the fleet nor its environments, with modules that may be gone by then, print anything."""
    code = f"""
    import envfleet
    from envfleet.testing import CountingEnv
    fleet = envfleet.make(CountingEnv, 2, backend={backend!r})
    fleet.reset()
    fleet.itself = fleet  # collected late, if at all
    """
    result = run_script(code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
