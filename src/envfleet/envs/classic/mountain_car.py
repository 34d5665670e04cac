"""MountainCar: rock a car out of a valley with an engine too weak to climb straight out."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.classic.scalars import clip
from envfleet.envs.frames import draw_original
from envfleet.kernels import Kernel
from envfleet.kernels.maths import cos

_LOW = np.array([-1.2, -0.07], np.float32)
_HIGH = np.array([0.6, 0.07], np.float32)


class MountainCar(Kernel):
    """Gymnasium's MountainCar-v0 as a kernel: the same spaces, draws, rewards and ends.

    Observation: position and velocity. Actions: 0 accelerates left, 1 not at all, 2 right. Reward -1 per step.
        Terminated
    at the flag.

    Source: A. Moore, "Efficient Memory-based Learning for Robot Control" (1990).
    """

    observation_space = spaces.Box(_LOW, _HIGH, dtype=np.float32)
    action_space = spaces.Discrete(3)
    max_episode_steps: ClassVar[int | None] = 200

    class State(Kernel.State):
        """Position and velocity, in Gymnasium's float64."""

        position: float
        velocity: float

    class Params(Kernel.Params):
        """Gymnasium's attributes of the same names; the start is uniform between its bounds."""

        min_position: float = -1.2
        max_position: float = 0.6
        max_speed: float = 0.07
        goal_position: float = 0.5
        goal_velocity: float = 0.0
        force: float = 0.001
        gravity: float = 0.0025
        start_low: float = -0.6
        start_high: float = -0.4

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        """Begin at rest in the valley."""
        state.position = rng.uniform(params.start_low, params.start_high)
        state.velocity = 0.0

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Params) -> tuple[float, bool]:
        """Move one step; the left end of the road stops the car."""
        pull = (action - 1) * params.force + cos(3.0 * state.position) * -params.gravity
        velocity = clip(state.velocity + pull, -params.max_speed, params.max_speed)
        position = clip(state.position + velocity, params.min_position, params.max_position)
        velocity = 0.0 if (position == params.min_position) & (velocity < 0.0) else velocity
        state.position = position
        state.velocity = velocity
        return -1.0, (position >= params.goal_position) & (velocity >= params.goal_velocity)

    @staticmethod
    def observe(state: State, out: NDArray[np.float32]) -> None:
        """Write the state."""
        out[0] = state.position
        out[1] = state.velocity

    @staticmethod
    def render(state: State, params: Params) -> NDArray[Any]:
        """Draw Gymnasium's frame, `(400, 600, 3)`."""
        from gymnasium.envs.classic_control.mountain_car import MountainCarEnv

        return draw_original(
            MountainCarEnv,
            (600, 400),
            state=(state.position, state.velocity),
            min_position=params.min_position,
            max_position=params.max_position,
            goal_position=params.goal_position,
        )
