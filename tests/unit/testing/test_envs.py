"""The environments of the conformance suite keep Gymnasium's rules, unless their purpose is to break one."""

from __future__ import annotations

import numpy as np
import pytest

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


def test_a_saved_environment_continues_with_its_draws() -> None:
    env, copy = SavableEnv(20), SavableEnv(20)
    env.reset(seed=0)
    env.step(0)
    copy.set_state(env.get_state())
    for _ in range(5):
        np.testing.assert_array_equal(env.step(1)[0], copy.step(1)[0])
