"""Frames of the classic environments, drawn by Gymnasium's own environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray


def draw(make_env: Callable[..., gym.Env[Any, Any]], size: tuple[int, int], **attributes: Any) -> NDArray[np.uint8]:
    """Draw one frame with a fresh environment, so that threads may draw at the same time.

    Args:
        make_env: Class of the environment.
        size: Width and height of its frames.
        attributes: What to set on it first: its state, and what else its drawing reads.

    Returns:
        uint8 `(height, width, 3)`.

    Raises:
        DependencyNotInstalled: pygame is not; this is Gymnasium's error.
    """
    try:
        import pygame
    except ImportError as error:
        raise DependencyNotInstalled(
            "frames of the classic environments are drawn by pygame, which is not installed: "
            "pip install 'gymnasium[classic-control]'"
        ) from error
    env = make_env(render_mode="rgb_array")
    # An environment that finds a screen and a clock leaves sound and display alone: 0.2 s less, and no messages.
    for name, value in {"screen": pygame.Surface(size), "clock": object(), **attributes}.items():
        setattr(env, name, value)
    return np.asarray(env.render(), np.uint8)
