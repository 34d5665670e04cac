"""MountainCarContinuous: MountainCar with a continuous force that costs reward."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.classic.mountain_car import MountainCar
from envfleet.envs.classic.scalars import clip, single
from envfleet.envs.frames import draw_original
from envfleet.kernels import Kernel
from envfleet.kernels.maths import cos


class MountainCarContinuous(MountainCar):
    """Gymnasium's MountainCarContinuous-v0 as a kernel: the same spaces, draws, rewards and ends.

    Observation: position and velocity. Action: force, clipped to ±1. Reward: 100 at the flag, where the episode is
    terminated, minus a tenth of the squared action in every step.
    """

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)  # type: ignore[assignment]  # another, indeed
    max_episode_steps: ClassVar[int | None] = 999

    class State(Kernel.State):
        """Position and velocity. Gymnasium draws the first position in float64 and keeps all later ones in float32."""

        position: float
        velocity: np.float32

    class Params(Kernel.Params):
        """Gymnasium's attributes of the same names; `gravity` is a number in its code; the start is uniform."""

        min_position: float = -1.2
        max_position: float = 0.6
        max_speed: float = 0.07
        goal_position: float = 0.45
        goal_velocity: float = 0.0
        power: float = 0.0015
        gravity: float = 0.0025
        start_low: float = -0.6
        start_high: float = -0.4

    @staticmethod
    def step(state: Any, action: Any, rng: np.random.Generator, params: Any) -> tuple[float, bool]:
        """Move one step, rounded to float32 where Gymnasium rounds."""
        throttle = np.float64(action[0])
        # A float32 action within the bounds makes Gymnasium compute in float32; a clipped one is a Python float.
        is_clipped = (throttle < -1.0) | (throttle > 1.0)
        force = clip(throttle, -1.0, 1.0)
        thrust = force * params.power if is_clipped else single(force * single(params.power))
        # A first position that is a float32 by chance, one in 2**29, does not matter: only its rounding differs.
        is_first = single(state.position) != state.position
        angle = 3.0 * state.position if is_first else single(3.0 * state.position)
        slope = params.gravity * cos(angle)
        pull = single(thrust - slope if is_clipped else thrust - single(slope))
        speed = single(params.max_speed)
        velocity = clip(single(np.float64(state.velocity) + pull), -speed, speed)
        low, high = single(params.min_position), single(params.max_position)
        position = clip(single(state.position + velocity), low, high)
        velocity = 0.0 if (position == low) & (velocity < 0.0) else velocity
        state.position = position
        state.velocity = np.float32(velocity)
        terminated = (position >= single(params.goal_position)) & (velocity >= single(params.goal_velocity))
        return (100.0 if terminated else 0.0) - throttle * throttle * 0.1, terminated

    @staticmethod
    def render(state: Any, params: Any) -> NDArray[Any]:
        """Draw Gymnasium's frame, `(400, 600, 3)`."""
        from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv

        return draw_original(
            Continuous_MountainCarEnv,
            (600, 400),
            state=np.array([state.position, state.velocity], np.float32),
            min_position=params.min_position,
            max_position=params.max_position,
            goal_position=params.goal_position,
        )
