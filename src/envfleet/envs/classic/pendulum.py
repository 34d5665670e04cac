"""Pendulum: swing a pendulum up by a torque too weak to lift it at once, and hold it there."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.classic.scalars import clip, single, wrap_angle
from envfleet.envs.frames import draw_original
from envfleet.kernels import Kernel
from envfleet.kernels.maths import sin, sincos

_HIGH = np.array([1.0, 1.0, 8.0], np.float32)


class Pendulum(Kernel):
    """Gymnasium's Pendulum-v1 as a kernel: the same spaces and draws, and rewards within 1e-9.

    Observation: cosine and sine of the angle from the upright, angular velocity (rad/s). Action: a torque (N m),
    clipped to ±2. The reward is minus a cost of angle, velocity and torque. Never terminated.
    """

    observation_space = spaces.Box(-_HIGH, _HIGH, dtype=np.float32)
    action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
    max_episode_steps: ClassVar[int | None] = 200

    class State(Kernel.State):
        """Angle (rad, not wrapped), its velocity, and the torque of the last step, which the frame shows."""

        theta: float
        theta_dot: float
        torque: np.float32

    class Params(Kernel.Params):
        """Gymnasium's attributes of the same names; the start is uniform in ±`x_init`, ±`y_init`."""

        g: float = 10.0
        m: float = 1.0
        l: float = 1.0  # noqa: E741  # Gymnasium's name
        dt: float = 0.05
        max_speed: float = 8.0
        max_torque: float = 2.0
        x_init: float = math.pi
        y_init: float = 1.0

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        """Begin at any angle with a low velocity."""
        state.theta = rng.uniform(-params.x_init, params.x_init)
        state.theta_dot = rng.uniform(-params.y_init, params.y_init)
        state.torque = np.float32(0.0)

    @staticmethod
    def step(state: State, action: NDArray[np.float32], rng: np.random.Generator, params: Params) -> tuple[float, bool]:
        """Move by one semi-implicit Euler step; as in Gymnasium, terms with the torque are float32."""
        torque = clip(np.float64(action[0]), -single(params.max_torque), single(params.max_torque))
        angle = wrap_angle(state.theta)
        effort = single(single(0.001) * single(torque * torque))
        cost = angle * angle + 0.1 * (state.theta_dot * state.theta_dot) + effort
        inertia = 3.0 / (params.m * (params.l * params.l))
        push = single(single(inertia) * torque)
        speed = state.theta_dot + (3.0 * params.g / (2.0 * params.l) * sin(state.theta) + push) * params.dt
        state.theta_dot = clip(speed, -params.max_speed, params.max_speed)
        state.theta = state.theta + state.theta_dot * params.dt
        state.torque = np.float32(torque)
        return -cost, False

    @staticmethod
    def observe(state: State, out: NDArray[np.float32]) -> None:
        """Write cosine, sine and velocity."""
        sine, cosine = sincos(state.theta)
        out[0] = cosine
        out[1] = sine
        out[2] = state.theta_dot

    @staticmethod
    def render(state: State, params: Params) -> NDArray[Any]:
        """Draw Gymnasium's frame, `(500, 500, 3)`."""
        from gymnasium.envs.classic_control.pendulum import PendulumEnv

        return draw_original(
            PendulumEnv, (500, 500), state=np.array([state.theta, state.theta_dot]), last_u=float(state.torque)
        )
