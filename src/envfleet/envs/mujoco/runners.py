"""Robots that move in a plane: HalfCheetah, Hopper, Walker2d and Swimmer."""

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
    start_uniformly,
    unbounded,
    write_clipped_pose,
    write_pose,
)
from envfleet.physics import Task


class Runner(Task):
    """Base of the four tasks."""

    max_episode_steps = 1_000
    frame_skip = 4
    fixed_params = (EXCLUDE,)

    @classmethod
    def make_observation_space(cls, model: Any, params: Mapping[str, Any]) -> spaces.Box:
        """Return the space of positions and velocities."""
        return unbounded(model.nq + model.nv - int(params[EXCLUDE]))


class HalfCheetah(Runner):
    """Gymnasium's HalfCheetah-v5: the same spaces, draws, rewards and ends."""

    model = f"{ASSETS}half_cheetah.xml"
    frame_skip = 5
    info_fields = ("x_position", "x_velocity", "reward_forward", "reward_ctrl")
    reset_info_fields = ("x_position",)

    class State(Task.State):
        """Infos of the last step."""

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

    @staticmethod
    def reset(data: Any, model: Any, rng: np.random.Generator, params: Params) -> None:
        """Begin near the model's pose."""
        start_normally(data, model, rng, params.reset_noise_scale)

    @staticmethod
    def after_reset(data: Any, state: State) -> None:
        """Store the position."""
        state.x_position = data.qpos[0]

    @staticmethod
    def after_step(data: Any, state: State, action: NDArray[np.float32], params: Params) -> tuple[float, bool]:
        """Reward speed, and charge control."""
        state.x_velocity = (data.qpos[0] - state.x_position) / params.dt
        state.x_position = data.qpos[0]
        cost = control_cost(action, params.ctrl_cost_weight)
        state.reward_forward = params.forward_reward_weight * state.x_velocity
        state.reward_ctrl = -cost
        return state.reward_forward - cost, False

    @staticmethod
    def observe(data: Any, params: Params, out: NDArray[np.float64]) -> None:
        """Write positions and velocities."""
        write_pose(data, out, 1 if params.exclude_current_positions_from_observation else 0)


class _WalkerState(Task.State):
    """Infos of the last step of Hopper and Walker2d."""

    x_position: float
    z_distance_from_origin: float
    x_velocity: float
    reward_forward: float
    reward_ctrl: np.float32
    reward_survive: float


def _move(data: Any, model: Any, state: Any, action: NDArray[np.float32], params: Any, is_healthy: bool) -> Any:
    """Return the reward of Hopper and Walker2d, and store the infos."""
    state.x_velocity = (data.qpos[0] - state.x_position) / params.dt
    state.x_position = data.qpos[0]
    state.z_distance_from_origin = data.qpos[1] - model.qpos0[1]
    cost = control_cost(action, params.ctrl_cost_weight)
    state.reward_forward = params.forward_reward_weight * state.x_velocity
    state.reward_ctrl = -cost
    state.reward_survive = params.healthy_reward if is_healthy else 0.0 * params.healthy_reward
    return state.reward_forward + state.reward_survive - cost


class _Walker(Runner):
    """Base of Hopper and Walker2d."""

    info_fields = tuple(_WalkerState.__annotations__)
    reset_info_fields = ("x_position", "z_distance_from_origin")
    State = _WalkerState

    @staticmethod
    def reset(data: Any, model: Any, rng: np.random.Generator, params: Any) -> None:
        """Begin near the model's pose."""
        start_uniformly(data, model, rng, params.reset_noise_scale)

    @staticmethod
    def after_reset(data: Any, model: Any, state: _WalkerState) -> None:
        """Store the position."""
        state.x_position = data.qpos[0]
        state.z_distance_from_origin = data.qpos[1] - model.qpos0[1]

    @staticmethod
    def observe(data: Any, params: Any, out: NDArray[np.float64]) -> None:
        """Write positions and clipped velocities."""
        write_clipped_pose(data, out, 1 if params.exclude_current_positions_from_observation else 0)


class Hopper(_Walker):
    """Gymnasium's Hopper-v5: the same spaces, draws, rewards and ends."""

    model = f"{ASSETS}hopper.xml"

    class Params(Task.Params):
        """Gymnasium's arguments."""

        forward_reward_weight: float = 1.0
        ctrl_cost_weight: float = 1e-3
        healthy_reward: float = 1.0
        terminate_when_unhealthy: bool = True
        healthy_state_range: NDArray[np.float64] = np.array([-100.0, 100.0])
        healthy_z_range: NDArray[np.float64] = np.array([0.7, np.inf])
        healthy_angle_range: NDArray[np.float64] = np.array([-0.2, 0.2])
        reset_noise_scale: float = 5e-3
        exclude_current_positions_from_observation: bool = True

    @staticmethod
    def after_step(
        data: Any, model: Any, state: _WalkerState, action: NDArray[np.float32], params: Params
    ) -> tuple[float, bool]:
        """Reward speed and health, and charge control."""
        z, angle = params.healthy_z_range, params.healthy_angle_range
        low, high = params.healthy_state_range[0], params.healthy_state_range[1]
        is_healthy = z[0] < data.qpos[1] < z[1] and angle[0] < data.qpos[2] < angle[1]
        for i in range(2, data.qpos.size):
            is_healthy = is_healthy and low < data.qpos[i] < high
        for i in range(data.qvel.size):
            is_healthy = is_healthy and low < data.qvel[i] < high
        reward = _move(data, model, state, action, params, is_healthy)
        return reward, params.terminate_when_unhealthy and not is_healthy


class Walker2d(_Walker):
    """Gymnasium's Walker2d-v5: the same spaces, draws, rewards and ends."""

    model = f"{ASSETS}walker2d_v5.xml"

    class Params(Task.Params):
        """Gymnasium's arguments."""

        forward_reward_weight: float = 1.0
        ctrl_cost_weight: float = 1e-3
        healthy_reward: float = 1.0
        terminate_when_unhealthy: bool = True
        healthy_z_range: NDArray[np.float64] = np.array([0.8, 2.0])
        healthy_angle_range: NDArray[np.float64] = np.array([-1.0, 1.0])
        reset_noise_scale: float = 5e-3
        exclude_current_positions_from_observation: bool = True

    @staticmethod
    def after_step(
        data: Any, model: Any, state: _WalkerState, action: NDArray[np.float32], params: Params
    ) -> tuple[float, bool]:
        """Reward speed and health, and charge control."""
        z, angle = params.healthy_z_range, params.healthy_angle_range
        is_healthy = z[0] < data.qpos[1] < z[1] and angle[0] < data.qpos[2] < angle[1]
        reward = _move(data, model, state, action, params, is_healthy)
        return reward, params.terminate_when_unhealthy and not is_healthy


class Swimmer(Runner):
    """Gymnasium's Swimmer-v5: the same spaces, draws, rewards and ends."""

    model = f"{ASSETS}swimmer.xml"
    info_fields = (
        *("x_position", "y_position", "distance_from_origin", "x_velocity", "y_velocity"),
        *("reward_forward", "reward_ctrl"),
    )
    reset_info_fields = ("x_position", "y_position", "distance_from_origin")

    class State(Task.State):
        """Infos of the last step."""

        x_position: float
        y_position: float
        distance_from_origin: float
        x_velocity: float
        y_velocity: float
        reward_forward: float
        reward_ctrl: np.float32

    class Params(Task.Params):
        """Gymnasium's arguments."""

        forward_reward_weight: float = 1.0
        ctrl_cost_weight: float = 1e-4
        reset_noise_scale: float = 0.1
        exclude_current_positions_from_observation: bool = True

    @classmethod
    def make_observation_space(cls, model: Any, params: Mapping[str, Any]) -> spaces.Box:
        """Return the space of positions and velocities."""
        return unbounded(model.nq + model.nv - 2 * int(params[EXCLUDE]))

    @staticmethod
    def reset(data: Any, model: Any, rng: np.random.Generator, params: Params) -> None:
        """Begin near the model's pose."""
        start_uniformly(data, model, rng, params.reset_noise_scale)

    @staticmethod
    def after_reset(data: Any, state: State) -> None:
        """Store the position."""
        state.x_position, state.y_position = data.qpos[0], data.qpos[1]
        state.distance_from_origin = norm(data.qpos[:2])

    @staticmethod
    def after_step(data: Any, state: State, action: NDArray[np.float32], params: Params) -> tuple[float, bool]:
        """Reward speed, and charge control."""
        state.x_velocity = (data.qpos[0] - state.x_position) / params.dt
        state.y_velocity = (data.qpos[1] - state.y_position) / params.dt
        state.x_position, state.y_position = data.qpos[0], data.qpos[1]
        state.distance_from_origin = norm(data.qpos[:2])
        cost = control_cost(action, params.ctrl_cost_weight)
        state.reward_forward = params.forward_reward_weight * state.x_velocity
        state.reward_ctrl = -cost
        return state.reward_forward - cost, False

    @staticmethod
    def observe(data: Any, params: Params, out: NDArray[np.float64]) -> None:
        """Write positions and velocities."""
        write_pose(data, out, 2 if params.exclude_current_positions_from_observation else 0)
