"""Agents of every kind, and runs that another agent can continue."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

import envfleet
from envfleet.agents import (
    DDDQN,
    PPO,
    SAC,
    TD3,
    ActionTable,
    Collector,
    DDDQNConfig,
    PPOConfig,
    SACConfig,
    TD3Config,
    TransitionWriter,
)
from envfleet.envs.hockey.discrete import action_table

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
TORQUE = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
TABLE = ActionTable(action_table(2))
OFF_POLICY: dict[str, Any] = {"hidden": (16, 16), "batch_size": 8, "warmup": 12, "capacity": 100}
OPEN: list[Any] = []
KINDS: dict[str, Any] = {
    "dddqn": (DDDQN, spaces.Discrete(4, start=-1), DDDQNConfig(**OFF_POLICY)),
    "dddqn with a table, priorities, n steps": (
        DDDQN,
        TABLE,
        DDDQNConfig(**OFF_POLICY, prioritized=True, num_steps=3, target_period=3, target_tau=1.0),
    ),
    "sac": (SAC, TORQUE, SACConfig(**OFF_POLICY)),
    "sac with pink noise": (SAC, TORQUE, SACConfig(**OFF_POLICY, noise_exponent=1.0, noise_length=7)),
    "td3": (TD3, TORQUE, TD3Config(**OFF_POLICY)),
    "td3 with red noise": (TD3, TORQUE, TD3Config(**OFF_POLICY, noise_exponent=2.0, num_steps=2)),
    "ppo for discrete actions": (PPO, spaces.Discrete(4, start=-1), PPOConfig(hidden=(16,))),
    "ppo": (PPO, TORQUE, PPOConfig(hidden=(16,), normalize_observations=True, normalize_values=True, target_kl=0.5)),
}


def make(kind: Any, seed: int | None = 0, num_envs: int = 3) -> Any:
    agent_class, space, config = kind
    return agent_class(OBSERVATIONS, space, config, num_envs=num_envs, seed=seed)


class Drift(gym.Env[Any, Any]):
    """Takes any action; episodes of 5 steps that are cut off, or of 4 that terminate."""

    observation_space = OBSERVATIONS

    def __init__(self, action_space: Any) -> None:
        self.action_space = action_space
        self.episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.episode = 0, self.episode + 1
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert np.asarray(action) in self.action_space
        self.steps += 1
        is_even = self.episode % 2 == 0
        return self._observe(), float(np.sum(action)), is_even and self.steps == 4, self.steps == 5, {}

    def _observe(self) -> Any:
        return self.np_random.standard_normal(3).astype(np.float32)


class Run:
    """A training run that another agent can continue."""

    def __init__(self, agent: Any) -> None:
        space = agent.action_space
        if isinstance(space, ActionTable):
            space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.agent = agent
        self.fleet: Any = envfleet.make([lambda: Drift(space)] * 3, backend="serial", autoreset_mode="SAME_STEP")
        OPEN.append(self.fleet)
        if isinstance(agent, PPO):
            self.collector = Collector(self.fleet, 6, seed=0)
        else:
            self.observations, _ = self.fleet.reset(seed=0)
            self.writer = TransitionWriter(self.fleet)
            self.writer.reset(self.observations)

    def go_on(self, rounds: int) -> list[dict[str, float]]:
        metrics = []
        for _ in range(rounds):
            if isinstance(self.agent, PPO):
                metrics.append(self.agent.update(self.collector.collect(self.agent)))
                continue
            actions = self.agent.act_batch(self.observations)
            step = self.fleet.step(actions)
            self.observations = step[0]
            self.agent.remember(self.writer.step(actions, *step))
            if self.agent.is_ready:
                metrics.append(self.agent.update(2))
        return metrics


def weights_of(agent: Any) -> list[torch.Tensor]:
    return [tensor for part in agent.weights().values() for tensor in part.values()]


def is_equal(first: Any, second: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights_of(first), weights_of(second), strict=True))
