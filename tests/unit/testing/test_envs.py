"""The environments of the conformance suite keep Gymnasium's rules, unless their purpose is to break one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from envfleet.testing import CASES, InfoEnv
from envfleet.testing.compare import mismatches
from envfleet.testing.envs import SPACE_KINDS, SavableEnv, SpaceEnv


@pytest.mark.parametrize("kind", SPACE_KINDS)
def test_observations_and_actions_of_each_space_belong_to_it(kind: str) -> None:
    env = SpaceEnv(kind, kind, length=3)
    env.action_space.seed(0)
    assert env.reset(seed=0)[0] in env.observation_space
    for _ in range(3):
        action = env.action_space.sample()
        assert action in env.action_space
        assert env.step(action)[0] in env.observation_space


def play(env: Any) -> list[Any]:
    """Return copies of the results of an episode."""
    env.action_space.seed(0)
    results: list[Any] = [env.reset(seed=1)]
    while len(results) < 4:
        results.append(env.step(env.action_space.sample()))
    return results


@pytest.mark.parametrize("case", [case for case in CASES if not case.name.startswith("in-place")], ids=lambda c: c.name)
def test_a_seed_decides_an_episode(case: Any) -> None:
    one, other = case.make_env(2), case.make_env(2)
    assert mismatches(play(one), play(other)) == []


def test_a_saved_environment_continues_with_its_draws() -> None:
    env, copy = SavableEnv(20), SavableEnv(20)
    env.reset(seed=0)
    env.step(0)
    copy.set_state(env.get_state())
    for _ in range(5):
        np.testing.assert_array_equal(env.step(1)[0], copy.step(1)[0])


def test_infos_of_kinds_change_with_sub_environment_and_step() -> None:
    first, second = InfoEnv("numbers", 0), InfoEnv("numbers", 1)
    infos = [env.reset(seed=0)[1] for env in (first, second)]
    assert mismatches(infos[0], infos[1])
    assert mismatches(infos[0], first.step(0)[4])
