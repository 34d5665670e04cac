"""Environments with known, deterministic costs, for benchmarks and for the doctor's own probes.

Each does as little as possible besides the one thing it is for, so that what is measured is the vector environment
around it. Their episodes end by the time limit of the `EnvSpec` in `workloads`; nothing is registered with Gymnasium.
"""

from __future__ import annotations

import time
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

ObsT = TypeVar("ObsT")


class _CountingEnv(gymnasium.Env[ObsT, np.int64]):
    """Two actions and one counter, which every observation is a function of."""

    def __init__(self) -> None:
        self.action_space = spaces.Discrete(2)
        self._count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ObsT, dict[str, Any]]:
        """Start an episode at a counter drawn from the environment's own generator."""
        super().reset(seed=seed, options=options)
        self._count = int(self.np_random.integers(1_000))
        return self._observe(), self._info()

    def step(self, action: np.int64) -> tuple[ObsT, float, bool, bool, dict[str, Any]]:
        """Count on by one or two; the reward is the action."""
        self._count += 1 + int(action)
        return self._observe(), float(action), False, False, self._info()

    def _observe(self) -> ObsT:
        raise NotImplementedError

    def _info(self) -> dict[str, Any]:
        return {}


class NullEnv(_CountingEnv[NDArray[np.float32]]):
    """Costs next to nothing: what remains is the price of the vector environment itself.

    Args:
        observation_bytes: Size of an observation, rounded down to whole float32 values (at least one).
    """

    def __init__(self, observation_bytes: int = 16) -> None:
        super().__init__()
        size = max(1, observation_bytes // 4)
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self._observation = np.zeros(size, np.float32)

    def _observe(self) -> NDArray[np.float32]:
        return self._observation


class SpinEnv(_CountingEnv[NDArray[np.float32]]):
    """Burns a fixed amount of CPU time in every step, holding the interpreter lock as Python code does.

    CPU time, not wall time: more workers than cores must not make it look cheaper than it is.

    Args:
        step_us: CPU time of one step in microseconds.
        reset_us: CPU time of one reset in microseconds.
    """

    def __init__(self, step_us: float = 200.0, reset_us: float = 0.0) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-np.inf, np.inf, (8,), np.float32)
        self._step_ns, self._reset_ns = int(step_us * 1e3), int(reset_us * 1e3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Burn the reset's time, then start an episode."""
        _burn(self._reset_ns)
        return super().reset(seed=seed, options=options)

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Burn the step's time, then count on."""
        _burn(self._step_ns)
        return super().step(action)

    def _observe(self) -> NDArray[np.float32]:
        return np.full(8, self._count, np.float32)


class ImageEnv(_CountingEnv[NDArray[np.uint8]]):
    """Four stacked 84 × 84 frames, as Atari agents see them; making one costs nothing, moving it costs 28 kB."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
        # A window that moves over one tall picture: every observation differs and none is computed.
        self._film = np.random.default_rng(0).integers(0, 256, (168, 84, 4), np.uint8)
        self._film.flags.writeable = False

    def _observe(self) -> NDArray[np.uint8]:
        top = self._count % 84
        return self._film[top : top + 84]


class DictEnv(_CountingEnv[dict[str, Any]]):
    """A nested `Dict` observation of five leaves, as robotics and game environments have."""

    def __init__(self) -> None:
        super().__init__()
        inventory = spaces.Dict(
            {"amounts": spaces.Box(0, 1_000, (6,), np.int32), "selected": spaces.Discrete(6)},
        )
        self.observation_space = spaces.Dict(
            {
                "position": spaces.Box(-np.inf, np.inf, (3,), np.float32),
                "velocity": spaces.Box(-np.inf, np.inf, (3,), np.float32),
                "contacts": spaces.MultiBinary(4),
                "inventory": inventory,
            }
        )
        self._vector = np.zeros(3, np.float32)
        self._contacts = np.zeros(4, np.int8)
        self._amounts = np.zeros(6, np.int32)

    def _observe(self) -> dict[str, Any]:
        self._vector[0] = self._count
        self._amounts[0] = self._count % 1_000
        return {
            "position": self._vector,
            "velocity": self._vector,
            "contacts": self._contacts,
            "inventory": {"amounts": self._amounts, "selected": self._count % 6},
        }


class InfoEnv(_CountingEnv[NDArray[np.float32]]):
    """Numeric infos on every step, three unless told otherwise.

    Args:
        num_keys: How many keys every info has.
    """

    def __init__(self, num_keys: int = 3) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self._observation = np.zeros(4, np.float32)
        names = ["distance", "energy", "contacts"][:num_keys]
        self._names = names + [f"measure_{index}" for index in range(len(names), num_keys)]

    def _observe(self) -> NDArray[np.float32]:
        return self._observation

    def _info(self) -> dict[str, Any]:
        return dict.fromkeys(self._names, self._count * 0.5)


def _burn(nanoseconds: int) -> None:
    """Use the given CPU time of this thread."""
    if nanoseconds <= 0:
        return
    end = time.thread_time_ns() + nanoseconds
    while time.thread_time_ns() < end:
        pass
