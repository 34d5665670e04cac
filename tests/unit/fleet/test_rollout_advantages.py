"""Advantages in closed form, and against their definition in every autoreset mode."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

import envfleet
from envfleet.agents import PPO, Collector, PPOConfig, Rollout
from envfleet.errors import InvalidArgument
from envfleet.fleet.rollout import generalized_advantages


def column(*values: float) -> NDArray[np.float64]:
    return np.array(values, np.float64)[:, None]


def flags(*values: int) -> NDArray[np.bool_]:
    return np.array(values, np.bool_)[:, None]


def test_constant_rewards_and_a_critic_that_knows() -> None:
    gamma, value = 0.9, 10.0  # 1 / (1 - 0.9)
    values, nobody = np.full((20, 3), value), np.zeros((20, 3), np.bool_)
    advantages, _ = generalized_advantages(
        np.ones((20, 3)), values, values, nobody, nobody, nobody, gamma=gamma, gae_lambda=0.95
    )
    assert np.allclose(advantages, 0, atol=1e-12)


def test_constant_errors_make_a_geometric_series() -> None:
    gamma, lambda_, steps = 0.99, 0.9, 30
    zeros, nobody = np.zeros((steps, 1)), np.zeros((steps, 1), np.bool_)
    actual, _ = generalized_advantages(zeros + 1, zeros, zeros, nobody, nobody, nobody, gamma=gamma, gae_lambda=lambda_)
    ratio = gamma * lambda_
    expected = [(1 - ratio ** (steps - t)) / (1 - ratio) for t in range(steps)]
    assert actual[:, 0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        (0, 0, [1 + 0.5 * (1 + 0.5 * (1 + 0.5 * 8))] * 1),
        (1, 0, [1 + 0.5 * 1]),  # nothing after the end
        (0, 1, [1 + 0.5 * (1 + 0.5 * 8)]),  # the value of the last observation, nothing of the next episode
        (1, 1, [1 + 0.5 * 1]),  # both count as terminated
    ],
)
def test_ends_with_rewards_alone(terminated: int, truncated: int, expected: list[float]) -> None:
    """With lambda 1 the advantage is the discounted sum of rewards up to the end, less the value."""
    actual, _ = generalized_advantages(
        column(1, 1, 1), column(0, 0, 0), column(0, 8 if truncated or terminated else 0, 8),
        flags(0, terminated, 0), flags(0, truncated, 0), flags(0, 0, 0), gamma=0.5, gae_lambda=1.0,
    )  # fmt: skip
    assert actual[0].tolist() == pytest.approx(expected)
    assert actual[2].item() == pytest.approx(5.0)


class Counter(gym.Env[Any, Any]):
    """Observes its step; the reward is drawn; ends by turns: terminated after 3 steps, truncated after 5."""

    observation_space = spaces.Box(-10, 100, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, number: int) -> None:
        self.number, self.episode = number, number

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.episode = 0, self.episode + 1
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = float(np.sin(13 * self.episode + 7 * self.steps + self.number))
        is_odd = self.episode % 2 == 1
        observation = np.array([self.episode, self.steps], np.float32)
        return observation, reward, is_odd and self.steps == 3, self.steps == 5, {}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name)
def test_rollouts_of_every_mode_against_single_episodes(mode: AutoresetMode) -> None:
    gamma, lambda_, num_envs = 0.9, 0.8, 3
    agent = PPO(
        Counter.observation_space, Counter.action_space, PPOConfig(gamma=gamma, gae_lambda=lambda_), num_envs=3, seed=0
    )

    def value(episode: int, steps: int) -> float:
        row = torch.tensor([[episode, steps]], dtype=torch.float32)
        with torch.no_grad():
            return float(agent._network.raw_values(row))

    with envfleet.make([lambda n=n: Counter(n) for n in range(num_envs)], backend="serial", autoreset_mode=mode) as f:
        collector = Collector(f, 7, seed=0)
        collected = [(collector.collect(agent), collector.episodes) for _ in range(4)]
    returns: list[float] = []
    for rollout, episodes in collected:
        with torch.no_grad():
            inputs = agent._inputs(rollout.observations.reshape(-1, 2))
            advantages = agent._estimate_advantages(rollout, inputs)[0].view(7, num_envs)
        for row in range(num_envs):
            following, has_next = 0.0, False
            for step in range(6, -1, -1):
                if rollout.is_reset[step, row]:
                    assert mode is AutoresetMode.NEXT_STEP
                    has_next = False
                    continue
                episode, steps = (int(x) for x in rollout.observations[step, row])
                terminated = episode % 2 == 1 and steps + 1 == 3
                truncated = steps + 1 == 5
                assert (terminated, truncated) == (rollout.terminated[step, row], rollout.truncated[step, row])
                error = np.sin(13 * episode + 7 * (steps + 1) + row) - value(episode, steps)
                error += 0.0 if terminated else gamma * value(episode, steps + 1)
                following = error + (gamma * lambda_ * following if has_next and not (terminated or truncated) else 0)
                has_next = True
                assert advantages[step, row].item() == pytest.approx(following, abs=1e-5)
        assert episodes is not None
        assert set(episodes.lengths.tolist()) <= {3, 5}
        returns += episodes.returns.tolist()
    assert len(returns) >= 12


@pytest.mark.slow
def test_rollouts_of_kernels_are_those_of_steps() -> None:
    """Fused and step by step, a policy without chance plays the same."""
    rollouts: list[Rollout] = []
    for hide in (False, True):
        with contextlib.ExitStack() as stack:
            options: dict[str, Any] = {"backend": "kernel", "autoreset_mode": "SAME_STEP"}
            fleet = stack.enter_context(envfleet.make("envfleet/CartPole-v1", 5, **options))
            space = fleet.single_observation_space
            config = PPOConfig(hidden=(8,), normalize_observations=True)
            agent = PPO(space, fleet.single_action_space, config, num_envs=5, seed=0)
            list(agent._network.actor.parameters())[-2].data.mul_(1e4)  # chances of 0 and 1
            agent._network.observation_moments.update(torch.from_numpy(np.random.default_rng(0).normal(1, 2, (50, 4))))
            target = stack.enter_context(envfleet.adopt(gym.vector.VectorWrapper(fleet))) if hide else fleet
            rollouts.append(Collector(target, 60, seed=3).collect(agent))
    fused, stepped = rollouts
    assert len(fused.episodes) > 3
    for name in ("all_observations", "actions", "rewards", "terminated", "truncated", "is_reset"):
        assert np.array_equal(getattr(fused, name), getattr(stepped, name)), name
    for name in ("steps", "env_indices", "returns", "lengths", "observations"):
        assert np.array_equal(getattr(fused.episodes, name), getattr(stepped.episodes, name)), name


def test_rollouts_with_next_to_nothing_in_them() -> None:
    """All steps resets, or fewer steps than minibatches: nothing may become NaN."""
    agent = PPO(Counter.observation_space, Counter.action_space, num_envs=1, seed=0)
    with envfleet.make([lambda: Counter(0)], backend="serial", autoreset_mode="NEXT_STEP") as fleet:
        collector = Collector(fleet, 1, seed=0)
        figures = [agent.update(collector.collect(agent)) for _ in range(10)]
    assert [len(figure) == 0 for figure in figures] == [number in (3, 9) for number in range(10)]
    assert all(np.isfinite(value) for figure in figures for value in figure.values())


def test_a_collector_needs_steps_and_arrays_on_the_host() -> None:
    with envfleet.make("CartPole-v1", 1, backend="serial") as fleet:
        with pytest.raises(InvalidArgument, match="num_steps=0"):
            Collector(fleet, 0).collect(PPO(fleet.single_observation_space, fleet.single_action_space))
        other: Any = gym.vector.VectorWrapper(fleet)
        with pytest.raises(
            InvalidArgument, match=r"fleet is a VectorWrapper, expected a Fleet: call envfleet.adopt\(\)"
        ):
            Collector(other, 1)
        fleet.engine.traits = dataclasses.replace(fleet.engine.traits, device="cuda")
        with pytest.raises(InvalidArgument, match="live on 'cuda'"):
            Collector(fleet, 1)


def test_a_collector_needs_a_fleet_that_resets() -> None:
    with (
        envfleet.make("CartPole-v1", 1, backend="serial", autoreset_mode="DISABLED") as fleet,
        pytest.raises(InvalidArgument, match=r"AutoresetMode.DISABLED: .* make the fleet with NEXT_STEP or SAME_STEP"),
    ):
        Collector(fleet, 1).collect(PPO(fleet.single_observation_space, fleet.single_action_space))
