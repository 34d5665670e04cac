"""The model a fleet is compared with: plain Gymnasium environments and Gymnasium's own rules, one row at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from envfleet.testing.envs import CountingEnv, SavableEnv


def make_env(index: int) -> CountingEnv:
    """Two kinds in one fleet: one that saves its own state and one that is pickled for it."""
    return (CountingEnv, SavableEnv)[index % 2](4, vary=True, ends="alternate")


def make_registered(env_id: str, index: int) -> gymnasium.Env[Any, Any]:
    env = gymnasium.make(env_id, max_episode_steps=15)
    env.metadata = dict(env.metadata)  # SyncVectorEnv, the reference, would write into the class's own
    return env


class ModelRow:
    """One plain environment with its autoreset."""

    def __init__(self, env: gymnasium.Env[Any, Any], autoreset_mode: AutoresetMode) -> None:
        self.env, self.autoreset_mode = env, autoreset_mode
        self.is_ended = False
        self.episodes = 0
        self.length = 0
        self.total = 0.0

    def _begin(self) -> None:
        self.is_ended = False
        self.episodes += 1
        self.length, self.total = 0, 0.0

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._begin()
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, or begin the next episode if the mode says so."""
        if self.is_ended and self.autoreset_mode == AutoresetMode.NEXT_STEP:
            observation, info = self.reset()
            return observation, 0.0, False, False, info
        assert not self.is_ended
        observation, reward, terminated, truncated, info = self.env.step(action)
        reward = float(reward)
        self.length += 1
        self.total += reward
        self.is_ended = terminated or truncated
        if self.is_ended and self.autoreset_mode == AutoresetMode.SAME_STEP:
            final = {"final_obs": observation, "final_info": info}
            observation, info = self.reset()
            info = {**info, **final}
        return observation, reward, terminated, truncated, info

    def get_state(self) -> Any:
        state = {name: value for name, value in vars(self).items() if name != "env"}
        env = self.env.unwrapped
        return state, env.get_state() if isinstance(env, SavableEnv) else copy.deepcopy(self.env)

    def set_state(self, state: Any) -> None:
        own, env_state = copy.deepcopy(state)
        vars(self).update(own)
        if isinstance(self.env.unwrapped, SavableEnv):
            self.env.unwrapped.set_state(env_state)
        else:
            self.env = env_state


class ModelFleet:
    """N plain environments."""

    def __init__(self, env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]], autoreset_mode: AutoresetMode) -> None:
        self.rows = [ModelRow(env_fn(), autoreset_mode) for env_fn in env_fns]

    @property
    def ended(self) -> list[int]:
        return [index for index, row in enumerate(self.rows) if row.is_ended]

    def reset(
        self, indices: Sequence[int], seeds: Iterable[int | None], options: dict[str, Any] | None = None
    ) -> list[tuple[Any, dict[str, Any]]]:
        return [self.rows[index].reset(seed, options) for index, seed in zip(indices, seeds, strict=True)]

    def step(
        self, indices: Sequence[int], actions: Iterable[Any]
    ) -> list[tuple[Any, float, bool, bool, dict[str, Any]]]:
        return [self.rows[index].step(action) for index, action in zip(indices, actions, strict=True)]

    def column(self, name: str, dtype: Any) -> np.ndarray:
        return np.array([getattr(row, name) for row in self.rows], dtype=dtype)
