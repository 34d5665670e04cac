"""Environments of other packages, prepared the way agents usually see them; their packages are imported on building."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import wrappers


def breakout() -> gymnasium.Env[Any, Any]:
    """Build Breakout with the usual Atari preprocessing.

    Up to 30 no-ops at the start, frame skip 4, 84 × 84 grey, the last four frames stacked: uint8 of shape (4, 84, 84).
    Actions are not sticky, and a lost life does not end the episode; EnvPool's Breakout-v5 is the same.
    """
    env = gymnasium.make("ale_py:ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
    return wrappers.FrameStackObservation(wrappers.AtariPreprocessing(env), 4)


def minigrid() -> gymnasium.Env[Any, Any]:
    """Build MiniGrid's 6 × 6 DoorKey, whose observation is the agent's view alone: uint8 of shape (7, 7, 3)."""
    env = gymnasium.make("minigrid:MiniGrid-DoorKey-6x6-v0", disable_env_checker=True)
    space: Any = env.observation_space
    # The mission is left out: it is text, and the same in every episode.
    return wrappers.TransformObservation(env, lambda observation: observation["image"], space["image"])
