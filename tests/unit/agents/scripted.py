"""Environments that follow a script, and the transitions of one of them alone."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import strategies as st

import envfleet
from envfleet.agents.transitions import Transitions, TransitionWriter

MODES = tuple(AutoresetMode)
END = {"terminated": (True, False), "truncated": (False, True), "both": (True, True)}
Script = list[tuple[int, str]]
scripts = st.lists(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(sorted(END))), min_size=1, max_size=3), min_size=1, max_size=4
)


class Scripted(gym.Env[Any, Any]):
    """Episodes of given lengths and ends, over and over; observes (sub-environment, episode, step, last action)."""

    observation_space = gym.spaces.Box(-1, 10_000, (4,), np.float32)
    action_space = gym.spaces.Discrete(1000)

    def __init__(self, number: int, script: Script) -> None:
        self.number, self.script, self.episode = number, script, -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self._observe(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        length, kind = self.script[self.episode % len(self.script)]
        terminated, truncated = END[kind] if self.steps == length else (False, False)
        return self._observe(action), 100.0 * self.episode + self.steps, terminated, truncated, {}

    def _observe(self, action: Any) -> Any:
        return np.array([self.number, self.episode, self.steps, action], np.float32)


def choose(observations: Any) -> Any:
    """An action that any loop finds again from the observation."""
    return (np.asarray(observations) @ np.array([7, 31, 11, 1]) % 1000).astype(np.int64)


def alone(number: int, script: Script, num_transitions: int) -> list[tuple[Any, ...]]:
    """The first transitions of one environment."""
    env, transitions = Scripted(number, script), list[tuple[Any, ...]]()
    observation, _ = env.reset()
    for _ in range(num_transitions):
        action = choose(observation)
        following, reward, terminated, truncated, _ = env.step(action)
        row = number, observation.tolist(), int(action), reward, terminated, truncated, following.tolist()
        transitions.append(row)
        observation = env.reset()[0] if terminated or truncated else following
    return transitions


def play(all_scripts: list[Script], mode: Any, num_steps: int = 20) -> Iterator[Transitions]:
    """Step Gymnasium's vector environment of the scripts; yield the transitions of each step."""
    env_fns = [functools.partial(Scripted, *pair) for pair in enumerate(all_scripts)]
    with contextlib.closing(envfleet.adopt(SyncVectorEnv(env_fns, autoreset_mode=mode))) as envs:
        writer = TransitionWriter(envs)
        observations, _ = envs.reset()
        writer.reset(observations)
        for _ in range(num_steps):
            actions = choose(observations)
            step = envs.step(actions)
            observations = step[0]
            yield writer.step(actions, *step)
