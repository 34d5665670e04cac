"""Acrobot: swing the tip of two hanging links above a line, by a torque at the joint between them."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.classic.scalars import clip, single, wrap_angle
from envfleet.envs.frames import draw_original
from envfleet.kernels import Kernel
from envfleet.kernels.maths import sincos

_HIGH = np.array([1.0, 1.0, 1.0, 1.0, 4.0 * math.pi, 9.0 * math.pi], np.float32)


class Acrobot(Kernel):
    """Gymnasium's Acrobot-v1 (the dynamics of the book) as a kernel: the same spaces, draws, rewards and ends.

    Observation: cosine and sine of the first link's angle from hanging, then of the second's against the first, and
    both angular velocities (rad/s). Actions: a torque of -1, 0 or 1 N m. Reward -1 a step, 0 for the one that brings
    the tip above the line, where the episode is terminated.

    Source: R. Sutton, "Generalization in Reinforcement Learning" (1996); R. Sutton, A. Barto, "Reinforcement Learning:
    An Introduction", the chapter on on-policy control with approximation.
    """

    observation_space = spaces.Box(-_HIGH, _HIGH, dtype=np.float32)
    action_space = spaces.Discrete(3)
    max_episode_steps: ClassVar[int | None] = 500
    render_fps = 15

    class State(Kernel.State):
        """Angles in [-π, π] and velocities, in float64."""

        theta1: float
        theta2: float
        dtheta1: float
        dtheta2: float

    class Params(Kernel.Params):
        """Gymnasium's attributes in lower case; the start is uniform between its bounds in all four numbers."""

        dt: float = 0.2
        link_length_1: float = 1.0
        link_length_2: float = 1.0
        link_mass_1: float = 1.0
        link_mass_2: float = 1.0
        link_com_pos_1: float = 0.5
        link_com_pos_2: float = 0.5
        link_moi: float = 1.0
        max_vel_1: float = 4.0 * math.pi
        max_vel_2: float = 9.0 * math.pi
        gravity: float = 9.8
        torque: float = 1.0
        start_low: float = -0.1
        start_high: float = 0.1

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        """Begin hanging, nearly at rest; as in Gymnasium, draws are rounded to float32."""
        state.theta1 = single(rng.uniform(params.start_low, params.start_high))
        state.theta2 = single(rng.uniform(params.start_low, params.start_high))
        state.dtheta1 = single(rng.uniform(params.start_low, params.start_high))
        state.dtheta2 = single(rng.uniform(params.start_low, params.start_high))

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Params) -> tuple[float, bool]:
        """Move by one step of the classic Runge–Kutta method of fourth order."""
        torque = (action - 1) * params.torque
        a, b, c, d = state.theta1, state.theta2, state.dtheta1, state.dtheta2
        dt = params.dt
        half = dt / 2.0
        c1, d1 = _accelerate(a, b, c, d, torque, params)
        a2, b2 = c + half * c1, d + half * d1
        c2, d2 = _accelerate(a + half * c, b + half * d, a2, b2, torque, params)
        a3, b3 = c + half * c2, d + half * d2
        c3, d3 = _accelerate(a + half * a2, b + half * b2, a3, b3, torque, params)
        a4, b4 = c + dt * c3, d + dt * d3
        c4, d4 = _accelerate(a + dt * a3, b + dt * b3, a4, b4, torque, params)
        sixth = dt / 6.0
        state.theta1 = wrap_angle(a + sixth * (c + 2.0 * a2 + 2.0 * a3 + a4))
        state.theta2 = wrap_angle(b + sixth * (d + 2.0 * b2 + 2.0 * b3 + b4))
        dtheta1 = c + sixth * (c1 + 2.0 * c2 + 2.0 * c3 + c4)
        dtheta2 = d + sixth * (d1 + 2.0 * d2 + 2.0 * d3 + d4)
        state.dtheta1 = clip(dtheta1, -params.max_vel_1, params.max_vel_1)
        state.dtheta2 = clip(dtheta2, -params.max_vel_2, params.max_vel_2)
        terminated = -sincos(state.theta1)[1] - sincos(state.theta2 + state.theta1)[1] > 1.0
        return 0.0 if terminated else -1.0, terminated

    @staticmethod
    def observe(state: State, out: NDArray[np.float32]) -> None:
        """Write cosines, sines and velocities."""
        out[1], out[0] = sincos(state.theta1)
        out[3], out[2] = sincos(state.theta2)
        out[4] = state.dtheta1
        out[5] = state.dtheta2

    @staticmethod
    def render(state: State, params: Params) -> NDArray[Any]:
        """Draw Gymnasium's frame, `(500, 500, 3)`."""
        from gymnasium.envs.classic_control.acrobot import AcrobotEnv

        return draw_original(
            AcrobotEnv,
            (500, 500),
            state=np.array([state.theta1, state.theta2, state.dtheta1, state.dtheta2]),
            LINK_LENGTH_1=params.link_length_1,
            LINK_LENGTH_2=params.link_length_2,
        )


def _accelerate(
    theta1: float, theta2: float, dtheta1: float, dtheta2: float, torque: float, params: Any
) -> tuple[float, float]:
    """Return angular accelerations (rad/s²), bit for bit equal to Gymnasium's.

    The motion is chaotic: if sines and cosines differ in the last bit, one episode in five deviates from Gymnasium's by
    more than 1e-5 when actions are held for some steps. So the C library's functions are used, and its `pow` for
    squares as NumPy does for scalars; therefore the loop is not vectorized.
    """
    # x * x differs from pow(x, 2.0) for one number in a thousand. Of a constant 2.0 the compiler would make x * x.
    two = 2.0 + 0.0 * params.dt
    m1, m2 = params.link_mass_1, params.link_mass_2
    l1, r1, r2 = params.link_length_1, params.link_com_pos_1, params.link_com_pos_2
    moi, g = params.link_moi, params.gravity
    cos2, sin2 = math.cos(theta2), math.sin(theta2)
    d1 = m1 * (r1 * r1) + m2 * (l1 * l1 + r2 * r2 + 2.0 * l1 * r2 * cos2) + moi + moi
    d2 = m2 * (r2 * r2 + l1 * r2 * cos2) + moi
    phi2 = m2 * r2 * g * math.cos(theta1 + theta2 - math.pi / 2.0)
    phi1 = (
        -m2 * l1 * r2 * math.pow(dtheta2, two) * sin2
        - 2.0 * m2 * l1 * r2 * dtheta2 * dtheta1 * sin2
        + (m1 * r1 + m2 * l1) * g * math.cos(theta1 - math.pi / 2.0)
        + phi2
    )
    ddtheta2 = (torque + d2 / d1 * phi1 - m2 * l1 * r2 * math.pow(dtheta1, two) * sin2 - phi2) / (
        m2 * (r2 * r2) + moi - math.pow(d2, two) / d1
    )
    return -(d2 * ddtheta2 + phi1) / d1, ddtheta2
