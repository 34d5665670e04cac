"""CartPole: balance a pole that stands on a cart by pushing the cart left or right."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.frames import draw_original
from envfleet.kernels import Kernel
from envfleet.kernels.maths import sincos

_ANGLE_LIMIT = 12 * 2 * math.pi / 360
_HIGH = np.array([4.8, np.inf, 2 * _ANGLE_LIMIT, np.inf], np.float32)


class CartPole(Kernel):
    """Gymnasium's CartPole-v1 as a kernel: the same spaces, draws, rewards and ends.

    Observation: position (m), velocity (m/s), angle from the vertical (rad), angular velocity (rad/s).
    Actions: 0 pushes left, 1 right. Reward 1 per step. Terminated when the cart or the pole exceeds its limit.

    Source: A. Barto, R. Sutton, C. Anderson, "Neuronlike Adaptive Elements That Can Solve Difficult Learning Control
    Problems" (1983), with the corrected equations of R. Florian (2007).
    """

    observation_space = spaces.Box(-_HIGH, _HIGH, dtype=np.float32)
    action_space = spaces.Discrete(2)
    max_episode_steps: ClassVar[int | None] = 500
    render_fps = 50

    class State(Kernel.State):
        """Position and velocity of cart and pole, in float64 as in Gymnasium."""

        x: float
        x_dot: float
        theta: float
        theta_dot: float

    class Params(Kernel.Params):
        """Gymnasium's attributes of the same names; the start is uniform between its bounds in all four numbers."""

        gravity: float = 9.8
        masscart: float = 1.0
        masspole: float = 0.1
        length: float = 0.5  # half the pole's
        force_mag: float = 10.0
        tau: float = 0.02
        theta_threshold_radians: float = _ANGLE_LIMIT
        x_threshold: float = 2.4
        start_low: float = -0.05
        start_high: float = 0.05
        sutton_barto_reward: bool = False  # 0 a step and -1 at the end, instead of 1 a step

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        """Begin nearly upright and at rest."""
        state.x = rng.uniform(params.start_low, params.start_high)
        state.x_dot = rng.uniform(params.start_low, params.start_high)
        state.theta = rng.uniform(params.start_low, params.start_high)
        state.theta_dot = rng.uniform(params.start_low, params.start_high)

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Params) -> tuple[float, bool]:
        """Move by one explicit Euler step."""
        force = params.force_mag if action == 1 else -params.force_mag
        total_mass = params.masspole + params.masscart
        polemass_length = params.masspole * params.length
        sine, cosine = sincos(state.theta)
        push = (force + polemass_length * (state.theta_dot * state.theta_dot) * sine) / total_mass
        theta_acceleration = (params.gravity * sine - cosine * push) / (
            params.length * (4.0 / 3.0 - params.masspole * (cosine * cosine) / total_mass)
        )
        x_acceleration = push - polemass_length * theta_acceleration * cosine / total_mass
        state.x = state.x + params.tau * state.x_dot
        state.x_dot = state.x_dot + params.tau * x_acceleration
        state.theta = state.theta + params.tau * state.theta_dot
        state.theta_dot = state.theta_dot + params.tau * theta_acceleration
        terminated = (
            (state.x < -params.x_threshold)
            | (state.x > params.x_threshold)
            | (state.theta < -params.theta_threshold_radians)
            | (state.theta > params.theta_threshold_radians)
        )
        sutton_barto = -1.0 if terminated else 0.0
        return sutton_barto if params.sutton_barto_reward else 1.0, terminated

    @staticmethod
    def observe(state: State, out: NDArray[np.float32]) -> None:
        """Write the state."""
        out[0] = state.x
        out[1] = state.x_dot
        out[2] = state.theta
        out[3] = state.theta_dot

    @staticmethod
    def render(state: State, params: Params) -> NDArray[Any]:
        """Draw Gymnasium's frame, `(400, 600, 3)`."""
        from gymnasium.envs.classic_control.cartpole import CartPoleEnv

        return draw_original(
            CartPoleEnv,
            (600, 400),
            state=np.array([state.x, state.x_dot, state.theta, state.theta_dot]),
            length=params.length,
            x_threshold=params.x_threshold,
        )
