"""Whole episodes with a policy, in every autoreset mode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import envfleet
from envfleet.errors import InvalidArgument


class Count(gym.Env[Any, Any]):
    """The return is the number of the episode in this environment, times ten, plus the step that ends it."""

    observation_space, action_space = spaces.Box(0.0, 100.0, (1,)), spaces.Discrete(2)
    episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.left = 1 + self.episode % 3
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        is_over = self.left == 0
        return np.ones(1, np.float32), float(action) + (10.0 * self.episode if is_over else 0.0), is_over, False, {}


class Model:
    """Like one of Stable-Baselines3; notes which rows begin."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def predict(self, observations: Any, deterministic: bool) -> tuple[Any, None]:
        assert deterministic
        return np.zeros(len(observations), np.int64), None

    def begin(self, mask: Any) -> None:
        self.begun.append(int(mask.sum()))


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_each_row_plays_its_share(mode: Any) -> None:
    with envfleet.make(Count, 3, backend="serial", autoreset_mode=mode) as fleet:
        returns = fleet.evaluate(lambda observations: np.ones(len(observations), np.int64), episodes=7)
    lengths = np.array([1, 2, 3])
    assert returns.tolist() == [10.0 * (k // 3) + lengths[k // 3 % 3] for k in range(7)]


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_policies_learn_which_episodes_begin(mode: Any) -> None:
    model = Model()
    with envfleet.make(Count, 2, backend="serial", autoreset_mode=mode) as fleet:
        returns = fleet.evaluate(model, 6)
    assert returns.tolist() == [0.0, 0.0, 10.0, 10.0, 20.0, 20.0]
    assert model.begun == [2, 2, 2]


def test_progress_is_reported_when_episodes_end() -> None:
    shown: list[tuple[str, float]] = []
    with envfleet.make(Count, 3, backend="serial") as fleet:
        fleet.evaluate(Model(), 7, progress=lambda text, share: shown.append((text, share)))
    assert shown == [("3 of 7 episodes", 3 / 7), ("6 of 7 episodes", 6 / 7), ("7 of 7 episodes", 1.0)]


def test_the_number_of_episodes_and_the_policy_are_checked() -> None:
    with envfleet.make(Count, 2, backend="serial") as fleet:
        with pytest.raises(InvalidArgument, match="episodes=None: pass at least 1"):
            fleet.evaluate(Model())
        with pytest.raises(InvalidArgument, match="episodes=0: pass at least 1"):
            fleet.evaluate(Model(), 0)
        with pytest.raises(InvalidArgument, match="policy=3: pass a function"):
            fleet.evaluate(3, 1)
