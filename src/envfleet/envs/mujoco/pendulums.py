"""One pole, or two, on a cart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.mujoco.poses import ASSETS, start_normally, start_uniformly, unbounded, write_pose
from envfleet.physics import Task


class InvertedPendulum(Task):
    """Gymnasium's InvertedPendulum-v5: the same spaces, draws, rewards and ends."""

    model = f"{ASSETS}inverted_pendulum.xml"
    frame_skip = 2
    max_episode_steps = 1_000
    info_fields = ("reward_survive",)

    class State(Task.State):
        """Infos of the last step."""

        reward_survive: int

    class Params(Task.Params):
        """Gymnasium's arguments."""

        reset_noise_scale: float = 0.01

    @classmethod
    def make_observation_space(cls, model: Any, params: Mapping[str, Any]) -> spaces.Box:
        """Return the space of positions and velocities."""
        return unbounded(model.nq + model.nv)

    @staticmethod
    def reset(data: Any, model: Any, rng: np.random.Generator, params: Params) -> None:
        """Begin near the model's pose."""
        start_uniformly(data, model, rng, params.reset_noise_scale)

    @staticmethod
    def after_step(data: Any, state: State) -> tuple[float, bool]:
        """Reward every step in which the pole stands."""
        terminated = np.abs(data.qpos[1]) > 0.2
        for i in range(data.qpos.size):
            terminated = terminated or not np.isfinite(data.qpos[i])
        for i in range(data.qvel.size):
            terminated = terminated or not np.isfinite(data.qvel[i])
        state.reward_survive = 0 if terminated else 1
        return 0.0 if terminated else 1.0, terminated

    @staticmethod
    def observe(data: Any, out: NDArray[np.float64]) -> None:
        """Write positions and velocities."""
        write_pose(data, out, 0)


class InvertedDoublePendulum(Task):
    """Gymnasium's InvertedDoublePendulum-v5: the same spaces, draws, rewards and ends."""

    model = f"{ASSETS}inverted_double_pendulum.xml"
    frame_skip = 5
    max_episode_steps = 1_000
    observation_space = unbounded(9)
    info_fields = ("reward_survive", "distance_penalty", "velocity_penalty")

    class State(Task.State):
        """Infos of the last step."""

        reward_survive: float
        distance_penalty: float
        velocity_penalty: float

    class Params(Task.Params):
        """Gymnasium's arguments."""

        healthy_reward: float = 10.0
        reset_noise_scale: float = 0.1
        exponent: float = 2.0  # with a variable, `**` calls `pow`, as NumPy does, which rounds unlike x * x

    @staticmethod
    def reset(data: Any, model: Any, rng: np.random.Generator, params: Params) -> None:
        """Begin near the model's pose."""
        start_normally(data, model, rng, params.reset_noise_scale)

    @staticmethod
    def after_step(data: Any, state: State, params: Params) -> tuple[float, bool]:
        """Reward every step in which the poles stand, and charge distance and speed."""
        x, y, two = data.site_xpos[0, 0], data.site_xpos[0, 2], params.exponent
        terminated = y <= 1.0
        distance_penalty = 0.01 * x**two + (y - 2.0) ** two
        velocity_penalty = 1e-3 * data.qvel[1] ** two + 5e-3 * data.qvel[2] ** two
        state.reward_survive = 0.0 * params.healthy_reward if terminated else params.healthy_reward
        state.distance_penalty, state.velocity_penalty = -distance_penalty, -velocity_penalty
        return state.reward_survive - distance_penalty - velocity_penalty, terminated

    @staticmethod
    def observe(data: Any, out: NDArray[np.float64]) -> None:
        """Write the cart's position, sines and cosines of the angles, clipped velocities and constraint force."""
        out[0] = data.qpos[0]
        for i in range(2):
            out[1 + i] = math.sin(data.qpos[1 + i])
            out[3 + i] = math.cos(data.qpos[1 + i])
        for i in range(3):
            out[5 + i] = np.clip(data.qvel[i], -10.0, 10.0)
        out[8] = np.clip(data.qfrc_constraint[0], -10.0, 10.0)
