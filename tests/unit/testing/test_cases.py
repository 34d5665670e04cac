"""The cases of the conformance suite: Gymnasium's own class must support each, and a seed decides each episode."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from envfleet.testing import CASES, Case
from envfleet.testing.cases import Detach
from envfleet.testing.compare import mismatches
from envfleet.testing.envs import ActionKeeperEnv, InPlaceEnv


def play(env: Any) -> list[Any]:
    """Return copies of the results of an episode."""
    env.action_space.seed(0)
    results: list[Any] = [env.reset(seed=1)]
    while len(results) < 4:
        results.append(env.step(env.action_space.sample()))
    return results


@pytest.mark.parametrize("case", [case for case in CASES if not case.name.startswith("in-place")], ids=lambda c: c.name)
def test_a_seed_decides_an_episode(case: Case) -> None:
    one, other = case.make_env(2), case.make_env(2)
    assert mismatches(play(one), play(other)) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gymnasium_steps_detached_environments(case: Case) -> None:
    detached: Any = [functools.partial(lambda make: Detach(make()), env_fn) for env_fn in case.env_fns(3)]
    envs = SyncVectorEnv(detached)
    envs.action_space.seed(0)
    envs.reset(seed=0)
    ended: list[Any] = [envs.step(envs.action_space.sample())[2:4] for _ in range(10)]
    assert np.any(ended, axis=(0, 1)).all()  # each sub-environment ends an episode
    envs.close()


def test_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


def test_env_fns_build_the_environment_of_their_index() -> None:
    envs: list[Any] = []
    case = Case("indices", envs.append)  # type: ignore[arg-type]
    for env_fn in case.env_fns(3):
        env_fn()
    assert envs == [0, 1, 2]


def test_detach_copies_results() -> None:
    env: Any = InPlaceEnv()
    first = env.reset(seed=0)[0]
    assert env.step(0)[0] is first
    detached = Detach(InPlaceEnv())
    first = detached.reset(seed=0)[0]
    before = first.copy()
    detached.step(np.int64(0))
    np.testing.assert_array_equal(first, before)


def test_detach_copies_actions() -> None:
    env = Detach(ActionKeeperEnv(mutates=True))
    env.reset(seed=0)
    action = np.full(2, 0.5, np.float32)
    env.step(action)
    assert action.tolist() == [0.5, 0.5]
