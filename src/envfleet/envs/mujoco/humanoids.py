"""A humanoid that walks, and one that stands up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.mujoco.poses import (
    ASSETS,
    EXCLUDE,
    norm,
    start_uniformly,
    unbounded,
    write_pose,
    write_rows,
)
from envfleet.physics import Task, array

_INCLUDED = tuple(f"include_{name}_in_observation" for name in ("cinert", "cvel", "qfrc_actuator", "cfrc_ext"))


class _Observed(Task.Params):
    """Parts of observations."""

    exclude_current_positions_from_observation: bool = True
    include_cinert_in_observation: bool = True
    include_cvel_in_observation: bool = True
    include_qfrc_actuator_in_observation: bool = True
    include_cfrc_ext_in_observation: bool = True


class _Humanoid(Task):
    """Base of both tasks."""

    frame_skip = 5
    max_episode_steps = 1_000
    fixed_params = (EXCLUDE, *_INCLUDED)

    @classmethod
    def make_observation_space(cls, model: Any, params: Mapping[str, Any]) -> spaces.Box:
        """Return the space of positions, velocities, inertias, forces."""
        sizes = 10 * (model.nbody - 1), 6 * (model.nbody - 1), model.nv - 6, 6 * (model.nbody - 1)
        more = sum(size * int(params[name]) for size, name in zip(sizes, _INCLUDED, strict=True))
        return unbounded(model.nq + model.nv - 2 * int(params[EXCLUDE]) + more)

    @staticmethod
    def reset(data: Any, model: Any, rng: np.random.Generator, params: Any) -> None:
        """Begin near the model's pose."""
        start_uniformly(data, model, rng, params.reset_noise_scale)

    @staticmethod
    def observe(data: Any, params: Any, out: NDArray[np.float64]) -> None:
        """Write positions, velocities, inertias, velocities of bodies, forces of actuators and of contacts."""
        place = write_pose(data, out, 2 if params.exclude_current_positions_from_observation else 0)
        if params.include_cinert_in_observation:
            place = write_rows(data.cinert, out, place)
        if params.include_cvel_in_observation:
            place = write_rows(data.cvel, out, place)
        if params.include_qfrc_actuator_in_observation:
            for i in range(6, data.qfrc_actuator.size):
                out[place] = data.qfrc_actuator[i]
                place += 1
        if params.include_cfrc_ext_in_observation:
            write_rows(data.cfrc_ext, out, place)


class Humanoid(_Humanoid):
    """Gymnasium's Humanoid-v5: the same spaces, draws, rewards and ends."""

    model = f"{ASSETS}humanoid.xml"
    info_fields = (
        *("x_position", "y_position", "tendon_length", "tendon_velocity", "distance_from_origin"),
        *("x_velocity", "y_velocity", "reward_survive", "reward_forward", "reward_ctrl", "reward_contact"),
    )
    reset_info_fields = info_fields[:5]

    class State(Task.State):
        """Center of mass, and infos of the last step."""

        center_x: float
        center_y: float
        x_position: float
        y_position: float
        tendon_length: NDArray[np.float64] = array(2, np.float64)
        tendon_velocity: NDArray[np.float64] = array(2, np.float64)
        distance_from_origin: float
        x_velocity: float
        y_velocity: float
        reward_survive: float
        reward_forward: float
        reward_ctrl: float
        reward_contact: float

    class Params(_Observed):
        """Gymnasium's arguments."""

        forward_reward_weight: float = 1.25
        ctrl_cost_weight: float = 0.1
        contact_cost_weight: float = 5e-7
        contact_cost_range: NDArray[np.float64] = np.array([-np.inf, 10.0])
        healthy_reward: float = 5.0
        terminate_when_unhealthy: bool = True
        healthy_z_range: NDArray[np.float64] = np.array([1.0, 2.0])
        reset_noise_scale: float = 1e-2

    @staticmethod
    def after_reset(data: Any, model: Any, state: State) -> None:
        """Store the position."""
        _store_position(data, state)
        state.distance_from_origin = norm(data.qpos[:2])
        state.center_x, state.center_y = _mass_center(data, model, 0), _mass_center(data, model, 1)

    @staticmethod
    def after_step(data: Any, model: Any, state: State, params: Params) -> tuple[float, bool]:
        """Reward speed and health, and charge control and contacts."""
        center_x, center_y = _mass_center(data, model, 0), _mass_center(data, model, 1)
        state.x_velocity = (center_x - state.center_x) / params.dt
        state.y_velocity = (center_y - state.center_y) / params.dt
        state.center_x, state.center_y = center_x, center_y
        _store_position(data, state)
        state.distance_from_origin = norm(data.qpos[:2])
        is_healthy = params.healthy_z_range[0] < data.qpos[2] < params.healthy_z_range[1]
        ctrl_cost = params.ctrl_cost_weight * np.sum(np.square(data.ctrl))
        contact_cost = params.contact_cost_weight * np.sum(np.square(data.cfrc_ext))
        contact_cost = np.clip(contact_cost, params.contact_cost_range[0], params.contact_cost_range[1])
        state.reward_forward = params.forward_reward_weight * state.x_velocity
        state.reward_survive = params.healthy_reward if is_healthy else 0.0 * params.healthy_reward
        state.reward_ctrl, state.reward_contact = -ctrl_cost, -contact_cost
        reward = (state.reward_forward + state.reward_survive) - (ctrl_cost + contact_cost)
        return reward, params.terminate_when_unhealthy and not is_healthy


class HumanoidStandup(_Humanoid):
    """Gymnasium's HumanoidStandup-v5: the same spaces, draws, rewards and ends."""

    model = f"{ASSETS}humanoidstandup.xml"
    info_fields = (
        *("x_position", "y_position", "z_distance_from_origin", "tendon_length", "tendon_velocity"),
        *("reward_linup", "reward_quadctrl", "reward_impact"),
    )
    reset_info_fields = info_fields[:5]

    class State(Task.State):
        """Infos of the last step."""

        x_position: float
        y_position: float
        z_distance_from_origin: float
        tendon_length: NDArray[np.float64] = array(2, np.float64)
        tendon_velocity: NDArray[np.float64] = array(2, np.float64)
        reward_linup: float
        reward_quadctrl: float
        reward_impact: float

    class Params(_Observed):
        """Gymnasium's arguments, and MuJoCo's time step."""

        uph_cost_weight: float = 1.0  # unused, as in Gymnasium
        ctrl_cost_weight: float = 0.1
        impact_cost_weight: float = 0.5e-6
        impact_cost_range: NDArray[np.float64] = np.array([-np.inf, 10.0])
        reset_noise_scale: float = 1e-2
        timestep: float = 0.003

    @classmethod
    def read_params(cls, model: Any, params: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters, with the model's time step."""
        return {**params, "timestep": model.opt.timestep}

    @staticmethod
    def after_reset(data: Any, model: Any, state: State) -> None:
        """Store the position."""
        _store_position(data, state)
        state.z_distance_from_origin = data.qpos[2] - model.qpos0[2]

    @staticmethod
    def after_step(data: Any, model: Any, state: State, params: Params) -> tuple[float, bool]:
        """Reward height, and charge control and impacts."""
        _store_position(data, state)
        state.z_distance_from_origin = data.qpos[2] - model.qpos0[2]
        height = (data.qpos[2] - 0.0) / params.timestep
        ctrl_cost = params.ctrl_cost_weight * np.sum(np.square(data.ctrl))
        impact_cost = params.impact_cost_weight * np.sum(np.square(data.cfrc_ext))
        impact_cost = np.clip(impact_cost, params.impact_cost_range[0], params.impact_cost_range[1])
        state.reward_linup, state.reward_quadctrl, state.reward_impact = height, -ctrl_cost, -impact_cost
        return height - ctrl_cost - impact_cost + 1.0, False


def _store_position(data: Any, state: Any) -> None:
    state.x_position, state.y_position = data.qpos[0], data.qpos[1]
    state.tendon_length[:] = data.ten_length
    state.tendon_velocity[:] = data.ten_velocity


def _mass_center(data: Any, model: Any, axis: int) -> Any:
    total = 0.0
    for i in range(model.body_mass.size):
        total += model.body_mass[i] * data.xipos[i, axis]
    return total / np.sum(model.body_mass)
