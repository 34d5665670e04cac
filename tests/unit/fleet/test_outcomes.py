"""Resets and last observations are the same on every kind of engine, in every autoreset mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envfleet
from envfleet.fleet.outcomes import final_observations, find_resets

LIMIT = 3


class Clock(gym.Env[Any, Any]):
    """Observes the step; is truncated after `LIMIT` steps."""

    observation_space = gym.spaces.Dict(time=gym.spaces.Box(0, 9, (1,), np.float32))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return {"time": np.zeros(1, np.float32)}, {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return {"time": np.full(1, self.steps, np.float32)}, 0.0, False, self.steps == LIMIT, {}


def adopt(mode: AutoresetMode) -> Any:
    return envfleet.adopt(SyncVectorEnv([Clock] * 2, autoreset_mode=mode))


def make(mode: AutoresetMode) -> Any:
    return envfleet.make(Clock, 2, backend="serial", autoreset_mode=mode, final_infos=False)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("make_fleet", [adopt, make])
def test_resets_and_last_observations(make_fleet: Callable[[Any], Any], mode: AutoresetMode) -> None:
    resets, finals = [], []
    with make_fleet(mode) as fleet:
        fleet.reset(seed=0)
        for _ in range(2 * LIMIT + 1):
            observations, _, _, truncated, _ = fleet.step(np.zeros(2, np.int64))
            resets.append(find_resets(fleet.engine).tolist())
            last = final_observations(fleet.engine, observations, np.flatnonzero(truncated))
            finals += last["time"].ravel().tolist()
            if mode is AutoresetMode.DISABLED and truncated.any():
                fleet.reset(options={"reset_mask": truncated})
    places = [LIMIT] if mode is AutoresetMode.NEXT_STEP else []
    assert resets == [[step in places] * 2 for step in range(2 * LIMIT + 1)]
    assert finals == [LIMIT] * 4


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_rows_of_a_partial_step(mode: AutoresetMode) -> None:
    with make(mode) as fleet:
        fleet.reset(seed=0)
        rows = np.array([1])
        for step in range(1, LIMIT + 2):
            fleet.send(np.zeros(1, np.int64), rows)
            batch = fleet.recv()
            is_reset = mode is AutoresetMode.NEXT_STEP and step == LIMIT + 1
            assert find_resets(fleet.engine, rows).tolist() == [is_reset]
            if step == LIMIT:
                last = final_observations(fleet.engine, batch.observations, np.array([0]), rows)
                assert last["time"].tolist() == [[LIMIT]]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_kernels_say_the_same(mode: AutoresetMode) -> None:
    with envfleet.make("envfleet/CartPole-v1", 3, autoreset_mode=mode, max_episode_steps=5, final_infos=False) as fleet:
        fleet.reset(seed=0)
        before, resets = fleet.step(np.zeros(3, np.int64))[0], []
        for _ in range(5):
            observations, _, terminated, truncated, _ = fleet.step(np.zeros(3, np.int64))
            resets.append(find_resets(fleet.engine).tolist())
            ended = np.flatnonzero(terminated | truncated)
            last = final_observations(fleet.engine, observations, ended)
            moved = last[:, 0] - before[ended, 0]  # by one step, not to the start of another episode
            np.testing.assert_allclose(moved, 0.02 * before[ended, 1], rtol=1e-5)
            before = observations
    assert resets == [[mode is AutoresetMode.NEXT_STEP and step == 4] * 3 for step in range(5)]
