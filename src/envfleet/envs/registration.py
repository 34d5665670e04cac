"""The environments that come with envfleet, in Gymnasium's registry; nothing is imported before it is made."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

import gymnasium

from envfleet.kernels.registration import register

if TYPE_CHECKING:
    from envfleet.envs.hosting import Hosting

_TWINS = (  # of Gymnasium's environments with the same name; docs/kernels.md has how equal they are
    ("CartPole-v1", "classic.cartpole:CartPole", 500),
    ("Pendulum-v1", "classic.pendulum:Pendulum", 200),
    ("MountainCar-v0", "classic.mountain_car:MountainCar", 200),
    ("MountainCarContinuous-v0", "classic.mountain_car_continuous:MountainCarContinuous", 999),
    ("Acrobot-v1", "classic.acrobot:Acrobot", 500),
)
_KERNELS = (
    ("GridWorld-v0", "gridworld:GridWorld", 100),
    ("GridWorldPixels-v0", "gridworld:GridWorldPixels", 100),
    ("Turbofan-v0", "turbofan:Turbofan", 1000),
    ("Hockey-v0", "hockey.kernel.game:Hockey", 251),
    ("HockeyOne-v0", "hockey.kernel.game:HockeyOne", 251),
)
_ON_BOX2D: tuple[tuple[str, str, int | None], ...] = (
    ("Hockey-Box2D-v0", "hockey.env:HockeyEnv", None),
    ("Hockey-One-Box2D-v0", "hockey.one_player:HockeyOneEnv", None),
    ("Hockey-Two-Box2D-v0", "hockey.two_player:HockeyTwoEnv", 251),
)
_HOSTINGS = {"envfleet/Turbofan-v0": "turbofan.hosting:EngineHosting"}


def register_all() -> None:
    """Register them all under `envfleet/`."""
    for name, target, max_episode_steps in _TWINS:
        register(f"envfleet/{name}", f"envfleet.envs.{target}", max_episode_steps=max_episode_steps, twin_of=name)
    for name, target, max_episode_steps in _KERNELS:
        register(f"envfleet/{name}", f"envfleet.envs.{target}", max_episode_steps=max_episode_steps)
    for name, target, limit in _ON_BOX2D:
        gymnasium.register(f"envfleet/{name}", entry_point=f"envfleet.envs.{target}", max_episode_steps=limit)


def find_hosting(env_id: str) -> Hosting:
    """What a service needs to know of a registered environment."""
    kind: type[Hosting] = pkgutil.resolve_name(f"envfleet.envs.{_HOSTINGS.get(env_id, 'hosting:Hosting')}")
    return kind()
