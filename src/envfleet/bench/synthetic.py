"""Environments with known, deterministic costs, and wrappers that measurements put around environments.

Each environment does as little as it can besides the one thing it is for, so that what is measured is the vector
environment around it. Episodes end by the time limit of the `EnvSpec` in `workloads`; none is registered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator


class _CountingEnv(gymnasium.Env[Any, Any]):
    """Two actions and one counter, which every observation is a function of."""

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, spaces.Discrete(2)
        self._count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode at a counter drawn from the environment's own generator."""
        super().reset(seed=seed, options=options)
        self._count = int(self.np_random.integers(1_000))
        return self._observe(), self._info()

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count on by one or two; the reward is the action."""
        self._count += 1 + int(action)
        return self._observe(), float(action), False, False, self._info()

    def _observe(self) -> Any:
        raise NotImplementedError

    def _info(self) -> dict[str, Any]:
        return {}


class NullEnv(_CountingEnv):
    """Costs next to nothing: what remains is the price of the vector environment itself.

    Args:
        observation_bytes: Size of an observation, rounded down to whole float32 values (at least one).
    """

    def __init__(self, observation_bytes: int = 16) -> None:
        super().__init__(_box(max(1, observation_bytes // 4)))
        self._observation = np.zeros(self.observation_space.shape or (), np.float32)

    def _observe(self) -> Any:
        return self._observation


class SpinEnv(_CountingEnv):
    """Burns a fixed amount of CPU time in every step, holding the interpreter lock as Python code does.

    CPU time, not wall time: more workers than cores must not make it look cheaper than it is.

    Args:
        step_us: CPU time of one step in microseconds.
        reset_us: CPU time of one reset in microseconds.
    """

    def __init__(self, step_us: float = 200.0, reset_us: float = 0.0) -> None:
        super().__init__(_box(8))
        self._step_ns, self._reset_ns = int(step_us * 1e3), int(reset_us * 1e3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Burn the reset's time, then start an episode."""
        _burn(self._reset_ns)
        return super().reset(seed=seed, options=options)

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Burn the step's time, then count on."""
        _burn(self._step_ns)
        return super().step(action)

    def _observe(self) -> Any:
        return np.full(8, self._count, np.float32)


class ImageEnv(_CountingEnv):
    """Four stacked 84 × 84 frames, as Atari agents see them; making one costs nothing, moving it costs 28 kB."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(0, 255, (84, 84, 4), np.uint8))
        # A window that moves over one tall picture: every observation differs and none is computed.
        self._film = np.random.default_rng(0).integers(0, 256, (168, 84, 4), np.uint8)
        self._film.flags.writeable = False

    def _observe(self) -> Any:
        top = self._count % 84
        return self._film[top : top + 84]


class DictEnv(_CountingEnv):
    """A nested `Dict` observation of five leaves, as robotics and game environments have."""

    def __init__(self) -> None:
        inventory = spaces.Dict({"amounts": spaces.Box(0, 1_000, (6,), np.int32), "selected": spaces.Discrete(6)})
        parts = {"position": _box(3), "velocity": _box(3), "contacts": spaces.MultiBinary(4), "inventory": inventory}
        super().__init__(spaces.Dict(parts))
        self._vector, self._contacts = np.zeros(3, np.float32), np.zeros(4, np.int8)
        self._amounts = np.zeros(6, np.int32)

    def _observe(self) -> Any:
        self._vector[0] = self._count
        self._amounts[0] = self._count % 1_000
        inventory = {"amounts": self._amounts, "selected": self._count % 6}
        return {
            "position": self._vector,
            "velocity": self._vector,
            "contacts": self._contacts,
            "inventory": inventory,
        }


class InfoEnv(NullEnv):
    """Numeric infos on every step, three unless told otherwise.

    Args:
        num_keys: How many keys every info has.
    """

    def __init__(self, num_keys: int = 3) -> None:
        super().__init__()
        self._names = [f"measure_{index}" for index in range(num_keys)]

    def _info(self) -> dict[str, Any]:
        return dict.fromkeys(self._names, self._count * 0.5)


def _box(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


def _burn(nanoseconds: int) -> None:
    """Use the given CPU time of this thread."""
    if nanoseconds <= 0:
        return
    end = time.thread_time_ns() + nanoseconds
    while time.thread_time_ns() < end:
        pass


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
