"""Wrappers that measurements put around environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator


class WithoutInfos(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Drops every info, so that the doctor can tell what they cost."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset and return an empty info."""
        return self.env.reset(seed=seed, options=options)[0], {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step and return an empty info."""
        observation, reward, terminated, truncated, _ = self.env.step(action)
        return observation, reward, terminated, truncated, {}


class StaggeredStart(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Truncates one early episode at a random length, up to that of an ordinary one; costs nothing afterwards.

    That is the first episode where the time limit is known. Elsewhere the first shows how long an episode is and the
    second is cut.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._rng: np.random.Generator | None = None
        self._length = 0
        self._cut_at: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset; before the episode that is to be cut, draw its length, from the first reset's seed if it has one."""
        if self._rng is None:
            self._rng = np.random.default_rng(seed)
            spec = self.env.spec
            longest = None if spec is None else spec.max_episode_steps
        else:
            longest = self._length
        if longest and self._cut_at is None:
            self._cut_at = int(self._rng.integers(1, longest + 1))
        self._length = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step; the episode to be cut ends at the drawn length."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._length += 1
        truncated = bool(truncated or self._length == self._cut_at)
        if self._cut_at is not None and (terminated or truncated):
            vars(self)["step"] = self.env.step  # from now on a call goes straight there
        return observation, reward, terminated, truncated, info


def build_wrapped(class_name: str, entry_point: str, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """Build what an entry point returns inside a wrapper of this module.

    Args:
        class_name: Name of the wrapper's class.
        entry_point: As `module:function`.
        kwargs: For that.
    """
    wrapper: Callable[[Any], gymnasium.Env[Any, Any]] = globals()[class_name]
    return wrapper(load_env_creator(entry_point)(**kwargs))
