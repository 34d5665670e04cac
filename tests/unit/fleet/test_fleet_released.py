"""A closed fleet without references leaves nothing behind, without a garbage collection."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from tests.conftest import SPREAD, Backend

import envfleet
from envfleet.adapters.gymnasium import AsyncFleet, SyncFleet
from envfleet.adapters.sb3 import FleetVecEnv
from envfleet.errors import SubEnvError
from envfleet.testing import CountingEnv, FaultyEnv


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def use(fleet: Any) -> list[weakref.ref[Any]]:
    """Use a fleet and close it; returns references to what has to go with it."""
    fleet.reset(seed=0)
    actions = [fleet.single_action_space.sample() for _ in range(fleet.num_envs)]
    for _ in range(3):
        fleet.step(np.array(actions))
    if fleet.engine.traits.has_states:
        fleet.set_state(fleet.get_state())
    fleet.close()
    return [weakref.ref(fleet), weakref.ref(fleet.engine)]


def test_a_closed_fleet_is_freed_at_once(make_fleet: Callable[..., Any]) -> None:
    use(make_fleet(2, autoreset_mode="NEXT_STEP"))  # imports, and starts what all fleets share
    with no_collection():
        before = psutil.Process().num_fds()
        fleet = make_fleet(2, autoreset_mode="NEXT_STEP")
        kind = fleet.plan.backend
        kept = use(fleet)
        del fleet
        assert [one() for one in kept] == [None, None]
        if kind != "remote":  # its service is in this process, too
            assert psutil.Process().num_fds() <= before


class Pinned(CountingEnv):
    """Remembers every instance in this process."""

    instances: list[weakref.ref[Any]] = []  # noqa: RUF012  # reset by the test

    def __init__(self) -> None:
        super().__init__()
        self.instances.append(weakref.ref(self))


@pytest.mark.parametrize("name", ["serial", "thread"])
def test_closing_frees_the_sub_environments(name: Any) -> None:
    with no_collection():
        Pinned.instances.clear()
        fleet = envfleet.make(Pinned, 2, backend=name)
        use(fleet)
        assert Pinned.instances
        assert [one() for one in Pinned.instances] == [None] * len(Pinned.instances)


@pytest.mark.parametrize("kind", [SyncFleet, AsyncFleet, FleetVecEnv])
def test_fleets_under_other_names_are_freed_at_once(kind: Any) -> None:
    env: Any = [lambda: gym.make("CartPole-v1")] * 2

    def run() -> weakref.ref[Any]:
        fleet = kind(env)
        fleet.reset()
        fleet.step(np.zeros(2, int))
        fleet.close()
        return weakref.ref(fleet)

    with no_collection():
        assert run()() is None


@pytest.mark.parametrize("verb", ["step", "reset", "call"])
@pytest.mark.parametrize("name", SPREAD)  # serial's errors keep the frames of this thread
def test_a_fleet_that_failed_is_freed_at_once(name: Any, verb: Any) -> None:
    def run() -> list[weakref.ref[Any]]:
        fleet = envfleet.make(lambda: FaultyEnv("raise", verb), 2, backend=name, workers=2)
        with contextlib.suppress(SubEnvError):
            fleet.reset(seed=0)
            fleet.step(np.zeros(2, int))
            fleet.call("missing")
        fleet.close()
        return [weakref.ref(fleet), weakref.ref(fleet.engine)]

    with no_collection():
        assert [one() for one in run()] == [None, None]


@pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")
def test_a_fleet_that_was_not_closed_is_freed_at_once(backend: Backend) -> None:
    def run() -> list[weakref.ref[Any]]:
        fleet = backend([CountingEnv] * 2)
        fleet.reset(seed=0)
        return [weakref.ref(fleet), weakref.ref(fleet.engine)]

    with no_collection():
        assert [one() for one in run()] == [None, None]
