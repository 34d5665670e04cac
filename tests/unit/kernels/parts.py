"""Kernels with observations and actions that are a `Dict` or a `Tuple`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.kernels import Kernel, array


class Rover(Kernel):
    """Drives over a grid: gear and steering, a map and where it is."""

    observation_space: ClassVar[Any] = spaces.Dict(
        {
            "map": spaces.Box(0, 255, (3, 4), np.uint8),
            "gear": spaces.Discrete(3),
            "place": spaces.Box(-10.0, 10.0, (2,), np.float32),
            "speed": spaces.Box(-10.0, 10.0, (), np.float32),
        }
    )
    action_space: ClassVar[Any] = spaces.Dict(
        {"gear": spaces.Discrete(3), "steer": spaces.Box(-1.0, 1.0, (2,)), "lamps": spaces.MultiBinary(2)}
    )
    max_episode_steps: ClassVar[int | None] = 5
    info_fields: ClassVar[tuple[str, ...]] = ("gear",)

    class State:
        cells: NDArray[np.uint8] = array((3, 4), np.uint8)
        x: float
        y: float
        gear: int

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        for k in range(12):
            state.cells[k // 4, k % 4] = rng.integers(256)
        state.x = rng.uniform(-1.0, 1.0)
        state.y = 0.0
        state.gear = 0

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        state.gear = action["gear"]
        state.x = np.clip(state.x + state.gear * action["steer"][0], -9.0, 9.0)
        state.y = np.clip(state.y + action["steer"][1], -9.0, 9.0)
        state.cells[0, 0] = 200 if action["lamps"][1] else 0
        return state.x, abs(state.x) > 4.0

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        out["map"][:, :] = state.cells
        out["gear"] = state.gear
        out["place"][0] = state.x
        out["place"][1] = state.y
        out["speed"] = 0.5 * state.gear


class Pair(Rover):
    """The same as tuples."""

    observation_space: ClassVar[Any] = spaces.Tuple((spaces.Discrete(3), spaces.Box(-10.0, 10.0, (2,), np.float64)))
    action_space: ClassVar[Any] = spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Box(-1.0, 1.0, (2,))))

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        state.gear = action[0] + 1
        state.x = np.clip(state.x + state.gear * action[1][0], -9.0, 9.0)
        state.y = np.clip(state.y + action[1][1], -9.0, 9.0)
        return state.x, abs(state.x) > 4.0

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        out[0] = state.gear
        out[1][0] = state.x
        out[1][1] = state.y
