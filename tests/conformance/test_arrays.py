"""Ownership and lifetime of the arrays that a fleet returns."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.conftest import Backend

from envfleet.testing import CountingEnv, mismatches
from envfleet.testing.envs import ActionKeeperEnv, InPlaceEnv, SpaceEnv

NUM_ENVS = 3
ENVS = {
    "vector": functools.partial(CountingEnv, 3),
    "dict": functools.partial(CountingEnv, 3, dict_obs=True),
    "part_odd": functools.partial(SpaceEnv, "part_odd", "discrete", 3),
    "graph": functools.partial(SpaceEnv, "graph", "discrete", 3),
}


def steps_of(fleet: Any, count: int) -> list[Any]:
    """Step and return the arrays as they were handed out, each with a copy taken at once."""
    kept = []
    for step in range(count):
        returned = fleet.step(np.full(fleet.num_envs, step % 3))[:4]
        kept.append((returned, copy.deepcopy(returned)))
    return kept


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize(
    "autoreset_mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name
)
def test_copies_never_change(backend: Backend, env: str, autoreset_mode: AutoresetMode) -> None:
    with backend([ENVS[env]] * NUM_ENVS, copy=True, autoreset_mode=autoreset_mode) as fleet:
        first = fleet.reset(seed=0)[0]
        snapshot = copy.deepcopy(first)
        kept = steps_of(fleet, 6)
        fleet.reset_envs([1])
    assert not mismatches(snapshot, first)
    for returned, before in kept:
        assert not mismatches(before, returned)


@pytest.mark.parametrize("env", ENVS)
def test_views_hold_until_the_next_but_one_step(backend: Backend, env: str) -> None:
    """With copy=False a trainer holds `obs` and `next_obs` at once; the step after may overwrite `obs`."""
    with backend([ENVS[env]] * NUM_ENVS, copy=False) as fleet:
        previous = fleet.reset(seed=0)[0]
        snapshot = copy.deepcopy(previous)
        for step in range(8):
            observations, rewards, *_ = fleet.step(np.full(NUM_ENVS, step % 3))
            assert not mismatches(snapshot, previous), f"changed by the step after it, at step {step}"
            previous, snapshot = observations, copy.deepcopy(observations)
            assert rewards.dtype == np.float64


def test_views_are_not_copied(backend: Backend) -> None:
    """copy=False hands out two arrays in turn, and nothing else."""
    with backend([ENVS["vector"]] * NUM_ENVS, copy=False) as fleet:
        fleet.reset(seed=0)
        addresses = {fleet.step(np.zeros(NUM_ENVS, int))[0].__array_interface__["data"][0] for _ in range(8)}
    assert len(addresses) == 2


def test_arrays_outlive_the_fleet(backend: Backend) -> None:
    """A view of a closed fleet must not end the process; its values are whatever they are."""
    fleet = backend([ENVS["vector"]] * NUM_ENVS, copy=False)
    observations, _ = fleet.reset(seed=0)
    fleet.close()
    assert np.isfinite(observations.sum())


@pytest.mark.parametrize("is_partial", [False, True])
@pytest.mark.parametrize("env", ENVS)
def test_views_hold_while_the_next_step_is_under_way(backend: Backend, env: str, is_partial: bool) -> None:
    """A step of some rows must not write into what the step before returned."""
    rows = [1] if is_partial else None
    with backend([ENVS[env]] * NUM_ENVS, copy=False) as fleet:
        fleet.reset(seed=0)
        for step in range(4):
            returned = fleet.step(np.full(NUM_ENVS, step % 3))[:4]
            snapshot = copy.deepcopy(returned)
            fleet.send(np.full(len(rows) if rows else NUM_ENVS, (step + 1) % 3), rows)
            fleet.recv()
            assert not mismatches(snapshot, returned)


@pytest.mark.parametrize(("copy_mode", "batch_size"), [(True, NUM_ENVS), (False, NUM_ENVS - 1)])
def test_batches_are_copies(backend: Backend, copy_mode: bool, batch_size: int) -> None:
    """Unless it is of the whole fleet with copy=False: then it follows the rule for views."""
    with backend([ENVS["vector"]] * NUM_ENVS, copy=copy_mode, batch_size=batch_size) as fleet:
        fleet.reset(seed=0)
        kept = []
        for step in range(6):
            fleet.send(np.full(batch_size, step % 3), np.arange(batch_size))
            batch = fleet.recv()
            kept.append((batch[:4], copy.deepcopy(batch[:4])))
        for returned, before in kept:
            assert not mismatches(before, returned)


@pytest.mark.parametrize("env_class", [InPlaceEnv, CountingEnv])
def test_final_observations(backend: Backend, env_class: type[CountingEnv]) -> None:
    """The last observation of an episode survives a reset that overwrites the environment's own array."""
    with backend([env_class] * 2, autoreset_mode=AutoresetMode.SAME_STEP) as fleet:
        fleet.reset(seed=0)
        length = 3 if env_class is InPlaceEnv else 5
        for count in range(1, 3 * length + 1):
            observations, _, terminated, truncated, infos = fleet.step(np.array([1, 2]))
            ended = terminated | truncated
            assert ended.all() == (count % length == 0)
            if ended.any():
                assert fleet.final_observations[:, 0].tolist() == [length, length]
                assert fleet.final_observations[:, 3].tolist() == [1, 2]
                assert [final[0] for final in infos["final_obs"]] == [length, length]
                assert observations[:, 0].tolist() == [0, 0]


def test_actions_of_a_caller_who_reuses_the_array(backend: Backend) -> None:
    """The caller's array may be refilled at once after send; each sub-environment keeps the action it was given."""
    actions = np.zeros((NUM_ENVS, 2), np.float32)
    with backend([functools.partial(ActionKeeperEnv, 50)] * NUM_ENVS) as fleet:
        fleet.reset(seed=0)
        for step in range(1, 6):
            actions[:] = step / 10
            fleet.send(actions)
            actions[:] = -1
            observations = fleet.recv().observations
            if step > 1:
                np.testing.assert_array_equal(observations, np.full((NUM_ENVS, 2), (step - 1) / 10, np.float32))
