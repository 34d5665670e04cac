"""Sub-environments that are saved in the middle of their episodes continue exactly, or refuse to be saved."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from typing import Any

import numpy as np
import psutil
import pytest
from tests.conftest import Backend

import envfleet
from envfleet.errors import StateUnsupported, SubEnvError
from envfleet.testing import CountingEnv

# Gymnasium pickles both by the arguments of their constructors alone (`gymnasium.utils.EzPickle`).
MUJOCO, BOX2D = "Hopper-v5", "LunarLander-v3"


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_what_pickles_as_its_arguments_is_saved_as_it_is(backend: Any) -> None:
    with contextlib.closing(envfleet.make(MUJOCO, 2, backend=backend)) as fleet:
        fleet.action_space.seed(0)
        fleet.reset(seed=0)
        actions = [fleet.action_space.sample() for _ in range(90)]
        for action in actions[:5]:
            fleet.step(action)
        state = fleet.get_state()
        first = [fleet.step(action)[:4] for action in actions[5:]]
        fleet.set_state(state)
        second = [fleet.step(action)[:4] for action in actions[5:]]
    for one, other in zip(itertools.chain(*first), itertools.chain(*second), strict=True):
        np.testing.assert_array_equal(one, other)
    assert any(step[2].any() for step in first)  # and so do the generators, which draw the next episodes


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_what_cannot_be_saved_says_so_and_goes_on(backend: Any) -> None:
    with contextlib.closing(envfleet.make(BOX2D, 1, backend=backend)) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(SubEnvError, match=r"LunarLander.*cannot be pickled.*give it get_state\(\)") as caught:
            fleet.get_state()
        assert isinstance(caught.value.__cause__, StateUnsupported)
        fleet.step(np.zeros(1, np.int64))


class Holder(CountingEnv):
    """Holds a descriptor until it is closed, as environments with a simulator do."""

    def __init__(self) -> None:
        super().__init__()
        self.fd = os.open(os.devnull, os.O_RDONLY)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "fd": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, fd=os.open(os.devnull, os.O_RDONLY))

    def close(self) -> None:
        os.close(self.fd)


COUNTING = threading.Lock()


def count_fds(env: Any) -> int:
    with COUNTING:  # to count opens files, which another thread would count
        return psutil.Process().num_fds()


def test_set_state_closes_what_it_replaces(backend: Backend) -> None:
    with backend([Holder] * 2) as fleet:
        fleet.reset(seed=0)
        state = fleet.get_state()
        fleet.set_state(state)
        before = fleet.apply(count_fds)
        for _ in range(5):
            fleet.set_state(state)
        assert fleet.apply(count_fds) == before
        fleet.step(np.zeros(2, int))


class Client:
    """A connection to a simulator in this process, as PyBullet's `BulletClient`: an int, and a `__del__`."""

    open_ids: set[int] = set()  # noqa: RUF012  # the simulator's

    def __init__(self) -> None:
        self.number = max(self.open_ids, default=0) + 1
        self.open_ids.add(self.number)

    def __del__(self) -> None:
        self.open_ids.discard(self.number)


class Connected(CountingEnv):
    """Steps only while its connection is open."""

    def __init__(self) -> None:
        super().__init__()
        self.client = Client()

    def step(self, action: Any) -> Any:
        assert self.client.number in self.client.open_ids, "not connected"
        return super().step(action)


def test_a_connection_that_a_copy_would_share_is_refused(backend: Backend) -> None:
    with backend([Connected] * 2) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(
            SubEnvError, match=r"Client.* releases a resource in __del__.*give it get_state\(\)"
        ) as caught:
            fleet.get_state()
        assert isinstance(caught.value.__cause__, StateUnsupported)
        fleet.step(np.zeros(2, int))
