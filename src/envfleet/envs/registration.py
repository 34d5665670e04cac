"""The environments that come with envfleet, in Gymnasium's registry; nothing is imported before it is made."""

from __future__ import annotations

from envfleet.kernels.registration import register

_CLASSIC = (
    ("CartPole-v1", "cartpole:CartPole", 500),
    ("Pendulum-v1", "pendulum:Pendulum", 200),
    ("MountainCar-v0", "mountain_car:MountainCar", 200),
    ("MountainCarContinuous-v0", "mountain_car_continuous:MountainCarContinuous", 999),
    ("Acrobot-v1", "acrobot:Acrobot", 500),
)


def register_all() -> None:
    """Register them all under `envfleet/`."""
    for name, target, max_episode_steps in _CLASSIC:
        register(f"envfleet/{name}", f"envfleet.envs.classic.{target}", max_episode_steps=max_episode_steps)
