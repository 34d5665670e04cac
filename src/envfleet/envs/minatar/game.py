"""Common parts of MinAtar's games: the board, its picture, and sticky actions."""

from __future__ import annotations

import colorsys
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.frames import draw_cells
from envfleet.kernels import Kernel

SIZE: Final = 10
"""Rows and columns of every game's board."""

NOTHING, LEFT, UP, RIGHT, DOWN, FIRE = range(6)


class MinAtarGame(Kernel):
    """MinAtar game: a board of 10 × 10 cells, observed as one plane of bools per kind of object.

    Actions: 0 nothing, 1 left, 2 up, 3 right, 4 down, 5 fire; with `sticky_action_prob` the last action is repeated
    instead. The last action is 0 at the start of an episode, so that a seed determines everything; the package
    `minatar` keeps it from the previous episode. The package uses another generator, so the same seeds give other
    draws.

    Source: K. Young, T. Tian, "MinAtar: An Atari-Inspired Testbed for Thorough and Reproducible Reinforcement Learning
    Experiments" (2019).
    """

    action_space = spaces.Discrete(6)
    render_fps = 10

    class State(Kernel.State):
        """Last action."""

        last_action: int

    class Params(Kernel.Params):
        """Probability of sticky actions, and the index into the list above for each action of the space."""

        sticky_action_prob: float = 0.1
        action_set: NDArray[np.int32] = np.arange(6, dtype=np.int32)


def board_space(num_planes: int) -> spaces.Box:
    """Return the observation space of a game, bool `(10, 10, num_planes)`."""
    return spaces.Box(0, 1, (SIZE, SIZE, num_planes), np.bool_)  # type: ignore[arg-type]  # which takes bools, too


def press(state: MinAtarGame.State, action: int, rng: np.random.Generator, params: MinAtarGame.Params) -> int:
    """Return the action or, with the sticky probability, the last action."""
    if rng.random() >= params.sticky_action_prob:
        state.last_action = params.action_set[action]
    return state.last_action


def clear(out: NDArray[np.bool_]) -> None:
    """Write an empty board."""
    flat = out.flat
    for k in range(out.size):
        flat[k] = False


def aside(x: int, pressed: int) -> int:
    """Return the column to the left or right, within the board, if one of these is pressed."""
    return min(max(x + (pressed == RIGHT) * 1 - (pressed == LEFT) * 1, 0), SIZE - 1)


def renderer(observe: Callable[..., None], num_planes: int) -> Any:
    """Return the function `render` of a game: 32 pixels per cell, in the color of the last plane set there, else black.

    Args:
        observe: Function `observe` of the game.
        num_planes: Number of planes.
    """
    hues = [colorsys.hsv_to_rgb(k / num_planes, 0.65, 0.95) for k in range(num_planes)]
    colors = (np.array([(0.0, 0.0, 0.0), *hues]) * 255).astype(np.uint8)

    def render(state: Any, params: Any) -> NDArray[np.uint8]:
        board = np.zeros((SIZE, SIZE, num_planes), np.bool_)
        observe(state, board)
        return draw_cells(colors[(board * (np.arange(num_planes) + 1)).max(axis=2)])

    return staticmethod(render)
