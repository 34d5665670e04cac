"""Fleets in the shape of Gymnasium's `AsyncVectorEnv` and `SyncVectorEnv`.

Code that constructs one of Gymnasium's classes can construct one of these in its place: constructor, methods, results,
exceptions and their messages are those of Gymnasium 1.2, and each class lists what differs and why. Where nothing asks
for that shape `envfleet.make` is the better door; what it returns is inside as `fleet`.

Examples:
    >>> import gymnasium as gym
    >>> from envfleet.adapters.gymnasium import AsyncFleet  # was: from gymnasium.vector import AsyncVectorEnv
    >>> envs = AsyncFleet([lambda: gym.make("CartPole-v1")] * 2)
    >>> observations, infos = envs.reset(seed=42)
    >>> envs.step_async(envs.action_space.sample())
    >>> observations, rewards, terminations, truncations, infos = envs.step_wait(timeout=60)
    >>> rewards
    array([1., 1.])
    >>> envs.close()
"""

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, CustomSpaceError, NoAsyncCallError
from gymnasium.vector.async_vector_env import AsyncState

from envfleet.adapters.gymnasium.async_fleet import AsyncFleet
from envfleet.adapters.gymnasium.sync_fleet import SyncFleet

__all__ = [
    "AlreadyPendingCallError",
    "AsyncFleet",
    "AsyncState",
    "ClosedEnvironmentError",
    "CustomSpaceError",
    "NoAsyncCallError",
    "SyncFleet",
]
