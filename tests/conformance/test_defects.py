"""Defects reproduced in other vector environments, each kept out of ours. Failures of processes are in tests/fault."""

from __future__ import annotations

import functools
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.conftest import Backend
from tests.waiting import PATIENCE_S, wait_until

import envfleet
from envfleet.testing import CountingEnv, FaultyEnv, InfoEnv
from envfleet.testing.envs import SpaceEnv


@pytest.mark.parametrize("is_masked", [False, True])
def test_reset_clears_a_pending_autoreset(backend: Backend, is_masked: bool) -> None:
    """Gymnasium's AsyncVectorEnv without shared memory resets twice: the step after the reset was lost."""
    with backend([functools.partial(CountingEnv, 1)] * 2) as fleet:
        fleet.reset(seed=0)
        assert fleet.step(np.zeros(2, int))[2].all()
        fleet.reset(options={"reset_mask": np.array([True, True])} if is_masked else None)
        observations, rewards, *_ = fleet.step(np.zeros(2, int))
        assert observations[:, 0].tolist() == [1, 1]
        assert rewards.tolist() == [1, 1]


def test_late_replies_are_not_taken_for_later_ones(backend: Backend) -> None:
    """Gymnasium's AsyncVectorEnv returns, after a timeout, every later step one too late."""
    env_fns = [functools.partial(FaultyEnv, "slow", nth=2, duration_s=2.0), functools.partial(FaultyEnv, None)]
    with backend(env_fns) as fleet:
        fleet.reset(seed=0)
        fleet.step(np.zeros(2, int))
        fleet.send(np.zeros(2, int))
        if backend.name != "serial":  # which steps where it is asked, and cannot be late
            with pytest.raises(TimeoutError):
                fleet.recv(timeout_s=0.05)
        for count in (2, 3, 4):
            batch = fleet.recv(timeout_s=PATIENCE_S)
            assert batch.observations[:, 0].tolist() == [count, count]
            assert batch.rewards.tolist() == [count, count]
            fleet.send(np.zeros(2, int))
        fleet.recv()


@pytest.mark.parametrize("reward", [1, np.float32(1), True])
def test_rewards_are_float64_everywhere(backend: Backend, reward: Any) -> None:
    """SB3's DummyVecEnv gives float32 and its SubprocVecEnv whatever the environment gives."""
    with backend([functools.partial(_RewardEnv, reward)] * 2) as fleet:
        fleet.reset(seed=0)
        rewards = fleet.step(np.zeros(2, int))[1]
        assert rewards.dtype == np.float64
        assert rewards.tolist() == [1.0, 1.0]


class _RewardEnv(CountingEnv):
    def __init__(self, reward: Any) -> None:
        super().__init__()
        self.reward = reward

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, self.reward, terminated, truncated, info


def test_mixed_infos_keep_their_values(backend: Backend) -> None:
    """Gymnasium truncates 1.25 to 1 where another sub-environment's value is an int."""
    with backend([functools.partial(InfoEnv, "mixed", index) for index in range(3)]) as fleet:
        _, infos = fleet.reset(seed=0)
        assert [infos["number"][index] for index in range(3)] == [0, 1.25, 2]
        assert [infos["large"][index] for index in range(3)] == [2**70, 2**70 + 1, 2**70 + 2]


def test_metadata_of_the_class_is_left_alone(backend: Backend) -> None:
    """Gymnasium writes the autoreset mode into the environment class, where the next vector environment finds it."""
    for mode in AutoresetMode:
        with backend([_TaggedEnv] * 2, autoreset_mode=mode) as fleet:
            assert fleet.metadata["autoreset_mode"] == mode
        assert _TaggedEnv.metadata == {"render_modes": []}


class _TaggedEnv(gymnasium.Env[Any, Any]):
    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # as Gymnasium declares it
    observation_space = action_space = gymnasium.spaces.Discrete(2)


def test_float16_and_odd_leaves_need_no_option(backend: Backend) -> None:
    """Gymnasium's shared memory refuses float16, and one odd leaf turns it off, or raises, for all."""
    for kind, key in (("float16", None), ("part_odd", "vector")):
        with backend([functools.partial(SpaceEnv, kind)] * 2) as fleet:
            observations, _ = fleet.reset(seed=0)
            assert observations in fleet.observation_space
            vector = observations if key is None else observations[key]
            assert vector.shape == (2, 3)


def test_seeds_of_sub_environments_differ(backend: Backend) -> None:
    """make(seed=…) seeds builders that take a seed apart, and reset(seed) twice gives the same twice."""
    with backend(_seeded, num_envs=3, seed=10) as fleet:
        assert fleet.get_attr("length") == (10, 11, 12)
        first = fleet.reset(seed=3)[0][:, 2]
        again = fleet.reset(seed=3)[0][:, 2]
        np.testing.assert_array_equal(first, again)
        assert len(set(first.tolist())) == 3


def _seeded(seed: int) -> CountingEnv:
    return CountingEnv(seed)


def test_idle_fleet_uses_no_cpu() -> None:
    """PufferLib's workers, and TorchRL's parent, spin while they wait."""
    with envfleet.make("CartPole-v1", num_envs=2, backend="process", workers=2) as fleet:
        fleet.reset(seed=0)
        fleet.step(np.zeros(2, int))
        import psutil

        workers = [psutil.Process(worker.pid) for worker in fleet.stats().workers]

        def used_s() -> float:
            return sum(sum(worker.cpu_times()[:2]) for worker in workers)

        def is_idle() -> bool:
            before_s = used_s()
            time.sleep(0.5)
            return used_s() - before_s <= 0.02

        wait_until(is_idle)
