"""Which backend and how many workers."""

import time

import gymnasium as gym
import numpy as np
import pytest

import envfleet
from envfleet.making.planning import fixed_plan
from envfleet.testing.envs import CountingEnv


class Sleeping(gym.Env):
    """A step that waits without using the processor: any second worker helps."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        time.sleep(0.002)
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("num_envs", "workers", "envs_per_worker", "sizes"),
    [(8, 3, None, (3, 3, 2)), (8, None, 3, (3, 3, 2)), (6, 2, 3, (3, 3)), (2, 2, None, (1, 1))],
)
def test_sub_environments_are_spread_evenly(num_envs, workers, envs_per_worker, sizes) -> None:
    assert fixed_plan("process", num_envs, workers, envs_per_worker, None, "").envs_per_worker == sizes


def test_serial_has_one_worker() -> None:
    assert fixed_plan("serial", 5, 3, None, None, "").envs_per_worker == (5,)


def test_auto_keeps_cheap_environments_in_one_thread_and_says_why() -> None:
    with envfleet.make(CountingEnv, num_envs=2) as fleet:
        assert fleet.plan.backend == "serial"
        assert "too short for processes to help" in fleet.plan.reason
        assert "serial" in repr(fleet)


def test_auto_measures_that_workers_help_and_says_so() -> None:
    with envfleet.make(Sleeping, num_envs=4, workers=4) as fleet:
        assert fleet.plan.backend == "process"
        assert "× as fast as serial" in fleet.plan.reason
        names, rates = zip(*fleet.plan.trials, strict=True)
        assert names == ("serial", "process, 4 workers × 1")
        assert rates[1] > rates[0]


def test_auto_hands_over_a_fleet_that_has_done_nothing() -> None:
    with envfleet.make("CartPole-v1", num_envs=3) as fleet, pytest.raises(envfleet.errors.ResetNeeded):
        fleet.step(np.zeros(3, np.int64))
    with envfleet.make("CartPole-v1", num_envs=3) as fleet:
        assert fleet.stats().steps == 0
        observations, _ = fleet.reset(seed=5)
        assert (fleet.episode_ids == [0, 1, 2]).all()
    reference, _ = gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync").reset(seed=5)
    assert (observations == reference).all()
