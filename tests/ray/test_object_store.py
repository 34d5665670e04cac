"""Observations that the object store cannot hold: told where nothing can be moved to disk, else only slower."""

from __future__ import annotations

import functools
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.ray.conftest import OBJECT_STORE_BYTES, REMOTE, no_actor_stays

from envfleet.errors import EnvfleetError, FleetBroken, WorkerDied

pytestmark = pytest.mark.timeout(110)

# To Ray every disk is full, so nothing can be moved there.
HEAD_OPTIONS = {"_system_config": {"automatic_object_spilling_enabled": False, "local_fs_capacity_threshold": 0.0}}
ROW_BYTES = OBJECT_STORE_BYTES // 8


class LargeEnv(gym.Env[Any, Any]):
    """Observes many bytes: whether the number of steps so far is odd."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, size: int) -> None:
        self.observation_space = gym.spaces.MultiBinary(size)  # without bounds as large as an observation
        self._size, self._count = size, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(self._size, np.int8), {}

    def step(self, action: Any) -> Any:
        self._count += 1
        return np.full(self._size, self._count % 2, np.int8), 0.0, False, False, {}


def test_too_large_for_the_store() -> None:
    """What one worker has to say does not fit: its fleet is told so, soon, and others go on."""
    with REMOTE([functools.partial(LargeEnv, 100)], workers=1) as other:
        other.reset(seed=0)
        with REMOTE([functools.partial(LargeEnv, ROW_BYTES)] * 9, workers=1) as fleet:
            start = time.monotonic()
            with pytest.raises(WorkerDied, match=r"OutOfDiskError"):
                fleet.reset(seed=0)
            assert time.monotonic() - start < 60.0
            with pytest.raises(FleetBroken):
                fleet.step(np.zeros(9, np.int64))
        assert other.step(np.zeros(1, np.int64))[0].max() == 1
    assert no_actor_stays()


def test_shared_data_too_large_for_the_store() -> None:
    table = np.zeros(3 * OBJECT_STORE_BYTES, np.uint8)
    with pytest.raises(EnvfleetError, match=r"could not be set up"):
        REMOTE([_Reader], workers=1, shared={"table": table})
    assert no_actor_stays()


class _Reader(LargeEnv):
    def __init__(self, table: Any) -> None:
        super().__init__(int(table[0]) + 1)


def test_many_steps_leave_nothing_in_the_store() -> None:
    """All answers together would not fit."""
    with REMOTE([functools.partial(LargeEnv, ROW_BYTES)] * 4, workers=2) as fleet:
        fleet.reset(seed=0)
        for count in range(1, 10):
            observations = fleet.step(np.zeros(4, np.int64))[0]
            assert (observations == count % 2).all()
