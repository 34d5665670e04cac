"""Environments of the built-in workloads; importing this module registers them as `envfleet-bench/…`.

Most are synthetic and have a known cost: each does only the one thing that it is for, so that the vector environment
dominates the measurement. The others come from packages that are imported when one is built, with the preprocessing
that agents usually use.
"""

from __future__ import annotations

import abc
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers


class _CountingEnv(gymnasium.Env[Any, Any], abc.ABC):
    """Environment with two actions and a counter, from which observations are computed."""

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, spaces.Discrete(2)
        self._count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; draw the counter from the environment's generator."""
        super().reset(seed=seed, options=options)
        self._count = int(self.np_random.integers(1_000))
        return self._observe(), self._info()

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Add one or two to the counter; the reward is the action."""
        self._count += 1 + int(action)
        return self._observe(), float(action), False, False, self._info()

    @abc.abstractmethod
    def _observe(self) -> Any: ...

    def _info(self) -> dict[str, Any]:
        return {}


class SpinEnv(_CountingEnv):
    """Uses a fixed amount of CPU time per step, with the interpreter lock held.

    CPU time, because with wall time more workers than cores would seem to gain something.

    Args:
        step_us: CPU time of one step in microseconds.
    """

    def __init__(self, step_us: float = 200.0) -> None:
        super().__init__(_box(8))
        self._step_ns = int(step_us * 1e3)

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Use the time of a step, then step."""
        end = time.thread_time_ns() + self._step_ns
        while time.thread_time_ns() < end:
            pass
        return super().step(action)

    def _observe(self) -> Any:
        return np.full(8, self._count, np.float32)


class ImageEnv(_CountingEnv):
    """Four stacked 84 × 84 frames, as Atari agents see them: 28 kB to move and nothing to compute."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(0, 255, (84, 84, 4), np.uint8))
        # A window moves over one tall picture, so observations differ without being computed.
        self._film = np.random.default_rng(0).integers(0, 256, (168, 84, 4), np.uint8)
        self._film.flags.writeable = False

    def _observe(self) -> Any:
        top = self._count % 84
        return self._film[top : top + 84]


class DictEnv(_CountingEnv):
    """Nested `Dict` observations with five leaves, as in robotics and games."""

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
        return {"position": self._vector, "velocity": self._vector, "contacts": self._contacts, "inventory": inventory}


class InfoEnv(_CountingEnv):
    """Numeric infos in every step.

    Args:
        num_keys: Number of keys of each info.
    """

    def __init__(self, num_keys: int = 3) -> None:
        super().__init__(_box(4))
        self._observation = np.zeros(4, np.float32)
        self._names = [f"measure_{index}" for index in range(num_keys)]

    def _observe(self) -> Any:
        return self._observation

    def _info(self) -> dict[str, Any]:
        return dict.fromkeys(self._names, self._count * 0.5)


def _box(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


def breakout() -> gymnasium.Env[Any, Any]:
    """Build Breakout with the usual Atari preprocessing.

    Up to 30 no-ops at the start, frame skip 4, 84 × 84 grey, the last four frames stacked: uint8 of shape (4, 84, 84).
    Actions are not sticky, and a lost life does not end the episode, as in EnvPool's Breakout-v5.
    """
    env = gymnasium.make("ale_py:ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
    return wrappers.FrameStackObservation(wrappers.AtariPreprocessing(env), 4)


def breakout_vector(num_envs: int = 1, **kwargs: Any) -> Any:
    """Build ale-py's vector environment of `breakout`."""
    from ale_py.vector_env import AtariVectorEnv

    alike: dict[str, Any] = {"repeat_action_probability": 0.0, "reward_clipping": False, "use_fire_reset": False}
    return AtariVectorEnv(game="breakout", num_envs=num_envs, **alike, **kwargs)


def minigrid() -> gymnasium.Env[Any, Any]:
    """Build MiniGrid's 6 × 6 DoorKey with the agent's view as its observation: uint8 of shape (7, 7, 3)."""
    from minigrid.wrappers import ImgObsWrapper

    # Drop the mission: it is text, and the same in every episode.
    return ImgObsWrapper(gymnasium.make("MiniGrid-DoorKey-6x6-v0", disable_env_checker=True))


for _class in (SpinEnv, ImageEnv, DictEnv, InfoEnv):
    _env_id = f"envfleet-bench/{_class.__name__.removesuffix('Env')}-v0"
    gymnasium.register(_env_id, entry_point=f"{__name__}:{_class.__name__}", max_episode_steps=200)
for _env_id, _function in {"Breakout-v5": breakout, "DoorKey-6x6-v0": minigrid}.items():
    gymnasium.register(
        f"envfleet-bench/{_env_id}",
        entry_point=f"{__name__}:{_function.__name__}",
        vector_entry_point=f"{__name__}:breakout_vector" if _function is breakout else None,
        order_enforce=False,  # the inner environment has these wrappers
        disable_env_checker=True,
    )
