"""Ant: run on four legs, with contact forces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.mujoco.poses import (
    ASSETS,
    EXCLUDE,
    control_cost,
    norm,
    start_normally,
    unbounded,
    write_pose,
)
from envfleet.physics import Task

_INCLUDE = "include_cfrc_ext_in_observation"


class Ant(Task):
    """Gymnasium's Ant-v5: the same spaces, draws, rewards and ends."""

    model = f"{ASSETS}ant.xml"
    frame_skip = 5
    max_episode_steps = 1_000
    info_fields = (
        *("x_position", "y_position", "distance_from_origin", "x_velocity", "y_velocity"),
        *("reward_forward", "reward_ctrl", "reward_contact", "reward_survive"),
    )
    reset_info_fields = ("x_position", "y_position", "distance_from_origin")
    fixed_params = (EXCLUDE, _INCLUDE, "main_body")

    class State(Task.State):
        """Position of the main body, and infos of the last step."""

        main_x: float
        main_y: float
        x_position: float
        y_position: float
        distance_from_origin: float
        x_velocity: float
        y_velocity: float
        reward_forward: float
        reward_ctrl: np.float32
        reward_contact: float
        reward_survive: float

    class Params(Task.Params):
        """Gymnasium's arguments."""

        forward_reward_weight: float = 1.0
        ctrl_cost_weight: float = 0.5
        contact_cost_weight: float = 5e-4
        healthy_reward: float = 1.0
        main_body: int = 1
        terminate_when_unhealthy: bool = True
        healthy_z_range: NDArray[np.float64] = np.array([0.2, 1.0])
        contact_force_range: NDArray[np.float64] = np.array([-1.0, 1.0])
        reset_noise_scale: float = 0.1
        exclude_current_positions_from_observation: bool = True
        include_cfrc_ext_in_observation: bool = True

    @classmethod
    def read_params(cls, model: Any, params: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters, with the number of the main body."""
        return {**params, "main_body": model.body(params.get("main_body", 1)).id}

    @classmethod
    def make_observation_space(cls, model: Any, params: Mapping[str, Any]) -> spaces.Box:
        """Return the space of positions, velocities and contact forces."""
        forces = 6 * (model.nbody - 1) * int(params[_INCLUDE])
        return unbounded(model.nq + model.nv - 2 * int(params[EXCLUDE]) + forces)

    @staticmethod
    def reset(data: Any, model: Any, rng: np.random.Generator, params: Params) -> None:
        """Begin near the model's pose."""
        start_normally(data, model, rng, params.reset_noise_scale)

    @staticmethod
    def after_reset(data: Any, state: State, params: Params) -> None:
        """Store the position."""
        _store_position(data, state, params)

    @staticmethod
    def after_step(data: Any, state: State, action: NDArray[np.float32], params: Params) -> tuple[float, bool]:
        """Reward speed and health, and charge control and contacts."""
        state.x_velocity = (data.xpos[params.main_body, 0] - state.main_x) / params.dt
        state.y_velocity = (data.xpos[params.main_body, 1] - state.main_y) / params.dt
        _store_position(data, state, params)
        is_healthy = params.healthy_z_range[0] <= data.qpos[2] <= params.healthy_z_range[1]
        for i in range(data.qpos.size):
            is_healthy = is_healthy and np.isfinite(data.qpos[i])
        for i in range(data.qvel.size):
            is_healthy = is_healthy and np.isfinite(data.qvel[i])
        forces = np.clip(data.cfrc_ext, params.contact_force_range[0], params.contact_force_range[1])
        ctrl_cost = control_cost(action, params.ctrl_cost_weight)
        contact_cost = params.contact_cost_weight * np.sum(np.square(forces))
        state.reward_forward = state.x_velocity * params.forward_reward_weight
        state.reward_survive = params.healthy_reward if is_healthy else 0.0 * params.healthy_reward
        state.reward_ctrl, state.reward_contact = -ctrl_cost, -contact_cost
        reward = (state.reward_forward + state.reward_survive) - (ctrl_cost + contact_cost)
        return reward, params.terminate_when_unhealthy and not is_healthy

    @staticmethod
    def observe(data: Any, params: Params, out: NDArray[np.float64]) -> None:
        """Write positions, velocities and clipped contact forces."""
        place = write_pose(data, out, 2 if params.exclude_current_positions_from_observation else 0)
        if params.include_cfrc_ext_in_observation:
            low, high = params.contact_force_range[0], params.contact_force_range[1]
            for i in range(1, data.cfrc_ext.shape[0]):
                for j in range(6):
                    out[place] = np.clip(data.cfrc_ext[i, j], low, high)
                    place += 1


def _store_position(data: Any, state: Any, params: Any) -> None:
    state.main_x, state.main_y = data.xpos[params.main_body, 0], data.xpos[params.main_body, 1]
    state.x_position, state.y_position = data.qpos[0], data.qpos[1]
    state.distance_from_origin = norm(data.qpos[:2])
