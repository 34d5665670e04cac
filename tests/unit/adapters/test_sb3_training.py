"""Stable-Baselines3's trainers on `FleetVecEnv`."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
)
from tests.unit.adapters.peers import Make
from tests.unit.adapters.sb3_cases import ROLLOUTS, SERIAL

from envfleet.adapters.sb3 import FleetVecEnv
from envfleet.errors import (
    InvalidArgument,
)


@pytest.mark.slow
@pytest.mark.usefixtures("one_torch_thread")
def test_ppo_learns_cartpole(close_later: Make) -> None:
    """From about 22 a random policy reaches to several times that, and the log shows it without a `Monitor`."""
    from stable_baselines3 import PPO

    env = close_later(FleetVecEnv, "CartPole-v1", 8, backend="process", workers=2)
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=128, n_epochs=8, learning_rate=1e-3, seed=1, device="cpu")
    model.learn(20_000)
    assert model.ep_info_buffer is not None
    assert np.mean([episode["r"] for episode in model.ep_info_buffer]) > 80
    returns, _ = evaluate_policy(model, env, n_eval_episodes=8, return_episode_rewards=True)
    assert np.mean(returns) > 120


def learn(env: Any) -> list[Any]:
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", env, n_steps=32, batch_size=64, n_epochs=2, seed=3, device="cpu")
    model.learn(256)
    return [parameter.detach().numpy() for parameter in model.policy.parameters()]


@pytest.fixture(scope="module")
def learnt() -> list[Any]:
    return learn(DummyVecEnv([functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=15)] * 4))


@pytest.mark.usefixtures("one_torch_thread")
def test_ppo_learns_the_same_on_every_fleet(make_fleet: Make, learnt: list[Any], close_later: Make) -> None:
    """To the last weight: everything that a trainer reads is the same as with `DummyVecEnv`, in the same order."""
    fleet = make_fleet(num_envs=4, autoreset_mode="SAME_STEP", max_episode_steps=15)
    for expected, actual in zip(learnt, learn(close_later(FleetVecEnv, fleet)), strict=True):
        np.testing.assert_array_equal(expected, actual)


class Choosing(gymnasium.Env[Any, Any]):
    """Dict observations, `MultiBinary` actions; says which dtype they have."""

    def __init__(self) -> None:
        self.metadata = {"render_modes": []}
        self.observation_space = spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(3)})
        self.action_space = spaces.MultiBinary(2)
        self.count = 0

    def _observe(self) -> dict[str, Any]:
        return {"a": self.np_random.random(2, np.float32), "b": self.count % 3}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        info = {"dtype": str(action.dtype)}
        return self._observe(), float(action.sum()), False, self.count >= 5, info


@pytest.mark.usefixtures("one_torch_thread")
def test_dict_observations_and_binary_actions(close_later: Make) -> None:
    from stable_baselines3 import PPO

    env = close_later(SERIAL, [Choosing] * 2)
    PPO("MultiInputPolicy", env, n_steps=8, batch_size=8, n_epochs=1, seed=0, device="cpu").learn(32)
    env.reset()
    assert env.step(np.ones((2, 2), np.float32))[3][0]["dtype"] == "int8"
    with pytest.raises(InvalidArgument, match="float32"):
        env.step(np.full((2, 2), 0.5, np.float32))
    with pytest.raises(InvalidArgument):
        env.step(np.full((2, 2), np.nan, np.float32))


@pytest.mark.usefixtures("one_torch_thread")
def test_off_policy_trainer(close_later: Make) -> None:
    """It reads `terminal_observation` and `TimeLimit.truncated`."""
    from stable_baselines3 import SAC

    env = close_later(SERIAL, ROLLOUTS["pendulum"])
    model = SAC(
        "MlpPolicy",
        env,
        learning_starts=30,
        batch_size=16,
        seed=0,
        device="cpu",
        policy_kwargs={"net_arch": [8]},
        replay_buffer_kwargs={"handle_timeout_termination": True},
    )
    model.learn(120)
    buffer: Any = model.replay_buffer
    assert buffer.dones[: buffer.pos].sum() == buffer.timeouts[: buffer.pos].sum() == 9
    ended = np.argwhere(buffer.timeouts[: buffer.pos - 1])
    for step, index in ended:
        # The observation after an end is the episode's last, not the first of the next.
        assert not np.array_equal(buffer.next_observations[step, index], buffer.observations[step + 1, index])
