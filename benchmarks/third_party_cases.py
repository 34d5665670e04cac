"""Environments of other packages that fleets are compared on with Gymnasium's vector environments."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


@dataclasses.dataclass(frozen=True)
class Case:
    """An environment of another package.

    Attributes:
        distribution: Name of the package on PyPI.
        module: Module that registers the environment when it is imported.
        env_id: Its id.
        make_kwargs: Function that returns the arguments of `gymnasium.make`, called once the module is imported.
        num_envs: Number of sub-environments that are compared.
        peers: Module of `SyncVectorEnv` and `AsyncVectorEnv`, and what precedes their names.
        shared_memory: Whether `AsyncVectorEnv` can use it, which it cannot for observations with text.
        thread: `"same"` bits, or `"refused"`.
    """

    distribution: str
    module: str
    env_id: str
    make_kwargs: Callable[[], dict[str, Any]] = dict
    num_envs: int = 8
    peers: tuple[str, str] = ("gymnasium.vector", "")
    shared_memory: bool = True
    thread: str = "same"

    def prepare(self) -> Callable[[], gym.Env[Any, Any]]:
        """Import the package as a script does at its top, and return a callable that makes the environment."""
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        if self.distribution == "sumo-rl":
            os.environ.setdefault("SUMO_HOME", importlib.import_module("sumo").SUMO_HOME)
        gym.register_envs(importlib.import_module(self.module))
        return partial(gym.make, self.env_id, **self.make_kwargs())


class CrafterEnv(gym.Env[Any, Any]):
    """Crafter with Gymnasium's interface; its generator belongs to the constructor."""

    observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = gym.spaces.Discrete(17)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        import crafter

        if seed is not None:
            self._env = crafter.Env(seed=seed)
        return self._env.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, done, info = self._env.step(action)
        return observation, reward, info["discount"] == 0, done and info["discount"] == 1, info


def _crossing() -> dict[str, Any]:
    folder = Path(importlib.import_module("sumo_rl").__file__ or "").parent / "nets" / "single-intersection"
    files = {f"{kind}_file": str(folder / f"single-intersection.{part}.xml") for kind, part in _SUMO_FILES}
    return {**files, "single_agent": True, "num_seconds": 500, "sumo_warnings": False, "sumo_seed": 1}


_SUMO_FILES = (("net", "net"), ("route", "rou"))

gym.register("Crafter-v1", entry_point=f"{__name__}:CrafterEnv", max_episode_steps=10_000)

CASES = {
    case.distribution if case.module != "gymnasium" else case.env_id: case
    for case in (
        Case("highway-env", "highway_env", "highway-fast-v0", num_envs=4),
        Case("minigrid", "minigrid", "MiniGrid-DoorKey-6x6-v0", shared_memory=False),
        Case("ale-py", "ale_py", "ALE/Pong-v5"),
        Case("mujoco", "gymnasium", "HalfCheetah-v5"),
        Case("box2d", "gymnasium", "LunarLander-v3"),
        Case("box2d", "gymnasium", "CarRacing-v3", num_envs=4, thread="refused"),
        Case("gym-pusht", "gym_pusht", "gym_pusht/PushT-v0", lambda: {"obs_type": "pixels"}),
        Case("gymnasium-robotics", "gymnasium_robotics", "FetchReach-v4"),
        Case("vizdoom", "vizdoom.gymnasium_wrapper", "VizdoomBasic-v1", num_envs=4),
        Case("sumo-rl", "sumo_rl", "sumo-rl-v0", _crossing, num_envs=2),
        Case("crafter", "crafter", "Crafter-v1"),
        Case("flappy-bird-gymnasium", "flappy_bird_gymnasium", "FlappyBird-v0"),
        Case("gym-anytrading", "gym_anytrading", "stocks-v0"),
        Case("mo-gymnasium", "mo_gymnasium", "deep-sea-treasure-v0", peers=("mo_gymnasium.wrappers.vector", "MO")),
        Case("bsuite", "shimmy", "bsuite/catch-v0"),
        Case("popgym", "popgym", "popgym-RepeatPreviousEasy-v0"),
        Case("pyflyt", "PyFlyt.gym_envs", "PyFlyt/QuadX-Hover-v4", num_envs=2),
    )
}
