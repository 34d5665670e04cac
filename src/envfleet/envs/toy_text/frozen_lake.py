"""FrozenLake: cross the ice from the start to the goal, and fall into no hole."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from gymnasium.envs.toy_text.frozen_lake import MAPS
from numpy.typing import NDArray

from envfleet.envs.frames import draw_original
from envfleet.envs.toy_text.sampling import draw_equal, draw_turn
from envfleet.errors import InvalidArgument
from envfleet.kernels import Kernel

_START, _FROZEN, _HOLE, _GOAL = (ord(letter) for letter in "SFHG")


def read_map(rows: Sequence[str]) -> NDArray[np.uint8]:
    """Return the letters of a map as numbers, uint8 `(height, width)`, the form of the parameter `desc`.

    Args:
        rows: Rows of the map, as Gymnasium's `desc`: `S` start, `F` frozen, `H` hole and `G` goal.
    """
    return np.asarray(rows, "S").reshape(-1, 1).view(np.uint8)


class FrozenLake(Kernel):
    """Gymnasium's FrozenLake-v1 as a kernel, 4 × 4 cells: the same spaces, draws, rewards, ends and infos.

    Observation: row × width + column. Actions: 0 left, 1 down, 2 right, 3 up; on slippery ice the walker goes there
    with probability `success_rate`, and to either side otherwise. Terminated on the goal and in a hole.

    Infos: `prob`, the probability of the move that was made.

    Another map is a parameter, one for all or one for each sub-environment, as in `desc=read_map(["SFF", ...])`. A map
    of another size needs a subclass with other shapes, as `FrozenLake8x8` is.
    """

    observation_space = spaces.Discrete(16)
    action_space = spaces.Discrete(4)
    max_episode_steps: ClassVar[int | None] = 100
    info_fields = ("prob",)
    render_fps = 4

    class State(Kernel.State):
        """Position of the walker, and the last move for Gymnasium's infos and frames (-1: none yet)."""

        position: int
        last_action: int
        prob: float

    class Params(Kernel.Params):
        """Gymnasium's arguments of the same names; rewards are those of goal, hole and ice."""

        desc: NDArray[np.uint8] = read_map(MAPS["4x4"])
        is_slippery: bool = True
        success_rate: float = 1.0 / 3.0
        reward_schedule: NDArray[np.float64] = np.array([1.0, 0.0, 0.0])

    @classmethod
    def check_params(cls, values: Mapping[str, NDArray[Any]]) -> None:
        """Check that maps consist of the four letters and have a start.

        Raises:
            InvalidArgument: One does not.
        """
        desc = values.get("desc")
        if desc is None:
            return
        strange = desc[~np.isin(desc, (_START, _FROZEN, _HOLE, _GOAL))]
        if len(strange):
            raise InvalidArgument(
                f"desc contains {chr(strange[0])!r}, expected S, F, H and G only: pass read_map([...]) of such letters"
            )
        if not (desc == _START).any(axis=(1, 2)).all():
            raise InvalidArgument("desc has a map without S, expected at least one start: write an S where to begin")

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        """Begin on a start, drawn if there are several."""
        height, width = params.desc.shape
        num_starts = 0
        for cell in range(height * width):
            num_starts += params.desc[cell // width, cell % width] == _START
        remaining = draw_equal(rng, num_starts)
        position = 0
        while params.desc[position // width, position % width] != _START or remaining > 0:
            remaining -= params.desc[position // width, position % width] == _START
            position += 1
        state.position = position
        state.last_action = -1
        state.prob = 1.0

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Params) -> tuple[float, bool]:
        """Walk or slip one cell; the edge stops the walker."""
        height, width = params.desc.shape
        ahead = params.success_rate if params.is_slippery else 1.0
        aside = (1.0 - params.success_rate) / 2.0 if params.is_slippery else 0.0
        turn = draw_turn(rng, ahead, aside)
        direction = (action + turn) % 4
        down = (direction == 1) * 1 - (direction == 3) * 1
        right = (direction == 2) * 1 - (direction == 0) * 1
        row = min(max(state.position // width + down, 0), height - 1)
        column = min(max(state.position % width + right, 0), width - 1)
        tile = params.desc[row, column]
        state.position = row * width + column
        state.last_action = action
        state.prob = ahead if turn == 0 else aside
        kind = 0 if tile == _GOAL else (1 if tile == _HOLE else 2)
        return params.reward_schedule[kind], (tile == _GOAL) | (tile == _HOLE)

    @staticmethod
    def observe(state: State, out: NDArray[np.int64]) -> None:
        """Write the position."""
        out[()] = state.position

    @staticmethod
    def render(state: State, params: Params) -> NDArray[Any]:
        """Draw Gymnasium's frame, 64 pixels a cell and at most `(512, 512, 3)`."""
        from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

        height, width = params.desc.shape
        desc: Any = np.asarray(params.desc).view("S1")
        return draw_original(
            functools.partial(FrozenLakeEnv, desc=desc),
            (min(64 * width, 512), min(64 * height, 512)),
            surface="window_surface",
            s=int(state.position),
            lastaction=None if state.last_action < 0 else int(state.last_action),
        )


class FrozenLake8x8(FrozenLake):
    """Gymnasium's FrozenLake8x8-v1: the same on 8 × 8 cells."""

    observation_space = spaces.Discrete(64)
    max_episode_steps: ClassVar[int | None] = 200

    class Params(FrozenLake.Params):
        """As above, with the larger map."""

        desc: NDArray[np.uint8] = read_map(MAPS["8x8"])
