"""Mistakes recognised and explained before any process starts, and calls at the wrong moment."""

from __future__ import annotations

import contextlib
import functools
import resource
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from tests.conftest import Backend

import envfleet
from envfleet.errors import EnvfleetError, FleetClosed, InvalidArgument, SubEnvError, UnknownEnv
from envfleet.testing import CountingEnv
from envfleet.testing.envs import AttributeEnv, SpaceEnv

pytestmark = pytest.mark.timeout(60)

one = CountingEnv
BAD_ARGUMENTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "num_envs=0": (one, {"num_envs": 0}, "num_envs"),
    "num_envs=-1": (one, {"num_envs": -1}, "num_envs"),
    "num_envs=2.5": (one, {"num_envs": 2.5}, "num_envs"),
    "num_envs beside another count": ([one] * 2, {"num_envs": 3}, "num_envs"),
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
    "start_method": (one, {"num_envs": 2, "start_method": "magic"}, "start_method"),
    "autoreset_mode": (one, {"num_envs": 2, "autoreset_mode": "sometimes"}, "autoreset_mode"),
    "unknown option": ("CartPole-v1", {"num_envs": 2, "workerz": 2}, "workerz"),
    "kwargs for a callable": (one, {"num_envs": 2, "length": 2}, "length"),
    "shared": (one, {"num_envs": 2, "shared": "prices"}, "shared is of type str, expected a dict"),
    "no environment": (42, {"num_envs": 2}, "int"),
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
        with pytest.raises(InvalidArgument, match="serial"):
            envfleet.make(one, num_envs=2, backend="quantum")  # type: ignore[call-overload]  # that is the point
        with pytest.raises(UnknownEnv, match=r"NoSuchEnv.*envfleet envs"):
            envfleet.make("NoSuchEnv-v0", num_envs=2, backend="process")
        with pytest.raises(gymnasium.error.UnregisteredEnv, match=r"v9.*close to it: CartPole-v1"):
            envfleet.make("CartPole-v9", num_envs=2, backend="process")


def test_the_same_object_twice(backend: Backend) -> None:
    """The commonest beginner's mistake: a builder that returns the one environment it holds.

    Each worker process has a copy of its own, so there it is found in workers with two of them.
    """
    env = CountingEnv()
    with pytest.raises(EnvfleetError, match=r"same|twice"):
        backend([lambda: env] * 4)


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


# ------------------------------------------------------------------------------------------------ use after close


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
        "split": lambda: fleet.split(2),
    }
    for name, call in calls.items():
        with pytest.raises(FleetClosed, match="close"):
            print(name, "returned", call())
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


FORK = """
    import os
    import envfleet
    from envfleet.testing import CountingEnv
    for backend in ("thread", "process"):
        fleet = envfleet.make(CountingEnv, 2, backend=backend, workers=1, step_timeout_s=20.0)
        fleet.reset()
        fork = os.fork()
        if not fork:
            for call in (lambda: fleet.step([0, 0]), fleet.reset, fleet.recv):
                try:
                    call()
                except envfleet.errors.FleetBroken as error:
                    print(error, flush=True)
            fleet.close()
            os._exit(0)
        assert os.waitpid(fork, 0)[1] == 0
        print(fleet.step([0, 0])[1], fleet.episode_lengths, flush=True)
        fleet.close()
"""


def test_a_fork_leaves_the_workers_to_its_parent() -> None:
    """It hung (threads), or stepped the parent's sub-environments and closed them (processes)."""
    result = run_script(FORK)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("it belongs to process") == 6
    assert result.stdout.count("[1 1]") == 2


# ------------------------------------------------------------------------------------------------ too little


def run_script(code: str, **limits: tuple[int, int]) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        for name, values in limits.items():
            resource.setrlimit(getattr(resource, name), values)

    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        preexec_fn=limit,
    )


MAKE_MANY = """
    import envfleet
    from envfleet.testing import CountingEnv
    try:
        envfleet.make(CountingEnv, num_envs=40, workers=40, backend="process")
    except envfleet.errors.EnvfleetError as error:
        print(type(error).__name__, error)
"""


def test_too_few_descriptors() -> None:
    result = run_script(MAKE_MANY, RLIMIT_NOFILE=(128, 128))
    assert result.returncode == 0, result.stderr
    for clue in ("InvalidArgument", "ulimit -n", "workers"):
        assert clue in result.stdout
    assert not result.stderr


def test_a_low_soft_limit_is_raised() -> None:
    code = MAKE_MANY.replace("envfleet.make(", "fleet = envfleet.make(").replace("40", "12")
    result = run_script(f"{textwrap.dedent(code)}\nfleet.close(), print('made')", RLIMIT_NOFILE=(64, 4096))
    assert (result.returncode, result.stderr) == (0, "")
    assert "made" in result.stdout


def test_too_little_memory(backend: Backend) -> None:
    """Observations that cannot fit are refused before anything is written to them."""
    with pytest.raises((EnvfleetError, MemoryError), match=r"(?i)memory|GiB|TiB"):
        backend([_HugeEnv] * 2)


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
