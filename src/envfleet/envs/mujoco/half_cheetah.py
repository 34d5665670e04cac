"""HalfCheetah: run forward on two legs in a plane."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.physics import Task


class HalfCheetah(Task):
    """Gymnasium's HalfCheetah-v5: the same spaces, draws, rewards and ends."""

    model = "gymnasium.envs.mujoco:assets/half_cheetah.xml"
    frame_skip = 5
    max_episode_steps = 1_000
    info_fields = ("x_position", "x_velocity", "reward_forward", "reward_ctrl")
    reset_info_fields = ("x_position",)
    fixed_params = ("exclude_current_positions_from_observation",)

    class State(Task.State):
        """Position before a step, and infos."""

        x_position: float
        x_velocity: float
        reward_forward: float
        reward_ctrl: np.float32

    class Params(Task.Params):
        """Gymnasium's arguments."""

        forward_reward_weight: float = 1.0
        ctrl_cost_weight: float = 0.1
        reset_noise_scale: float = 0.1
        exclude_current_positions_from_observation: bool = True

    @classmethod
    def make_observation_space(cls, model: Any, params: Any) -> spaces.Box:
        """Return the space of positions and velocities."""
        size = model.nq + model.nv - int(params["exclude_current_positions_from_observation"])
        return spaces.Box(-np.inf, np.inf, (size,), np.float64)

    @staticmethod
    def reset(data: Any, model: Any, rng: np.random.Generator, params: Params) -> None:
        """Begin near the model's pose."""
        scale = params.reset_noise_scale
        for i in range(data.qpos.size):
            data.qpos[i] = model.qpos0[i] + rng.uniform(-scale, scale)
        for i in range(data.qvel.size):
            data.qvel[i] = 0.0 + scale * rng.standard_normal()

    @staticmethod
    def after_reset(data: Any, state: State) -> None:
        """Remember the position."""
        state.x_position = data.qpos[0]

    @staticmethod
    def after_step(data: Any, state: State, action: NDArray[np.float32], params: Params) -> tuple[float, bool]:
        """Reward speed, and charge control."""
        state.x_velocity = (data.qpos[0] - state.x_position) / params.dt
        state.x_position = data.qpos[0]
        cost = np.float32(params.ctrl_cost_weight) * np.sum(np.square(action))
        state.reward_forward = params.forward_reward_weight * state.x_velocity
        state.reward_ctrl = -cost
        return state.reward_forward - cost, False

    @staticmethod
    def observe(data: Any, params: Params, out: NDArray[np.float64]) -> None:
        """Write positions and velocities."""
        first = 1 if params.exclude_current_positions_from_observation else 0
        n = data.qpos.size - first
        out[:n] = data.qpos[first:]
        out[n:] = data.qvel
