"""Arms that reach a target, or push an object to one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.mujoco.poses import ASSETS, norm, unbounded
from envfleet.physics import Task


def distance(data: Any, one: int, other: int) -> float:
    """Return the distance between two bodies."""
    return norm(data.xpos[one] - data.xpos[other])


def negative_control(action: NDArray[np.float32], weight: float) -> Any:
    """Return the negative cost of an action, in float32 as Gymnasium computes it."""
    return -np.sum(np.square(action)) * np.float32(weight)


class Reacher(Task):
    """Gymnasium's Reacher-v5: the same spaces, draws, rewards and ends."""

    model = f"{ASSETS}reacher.xml"
    frame_skip = 2
    max_episode_steps = 50
    observation_space = unbounded(10)
    info_fields = ("reward_dist", "reward_ctrl")
    fixed_params = ("fingertip", "target")

    class State(Task.State):
        """Infos of the last step."""

        reward_dist: float
        reward_ctrl: np.float32

    class Params(Task.Params):
        """Gymnasium's arguments, and numbers of bodies."""

        reward_dist_weight: float = 1.0
        reward_control_weight: float = 1.0
        fingertip: int = 0
        target: int = 0

    @classmethod
    def read_params(cls, model: Any, params: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters, with the numbers of bodies."""
        return {**params, "fingertip": model.body("fingertip").id, "target": model.body("target").id}

    @staticmethod
    def reset(data: Any, model: Any, rng: np.random.Generator) -> None:
        """Begin near the model's pose, with a target within reach."""
        for i in range(data.qpos.size):
            data.qpos[i] = rng.uniform(-0.1, 0.1) + model.qpos0[i]
        n = data.qpos.size
        while True:
            x = rng.uniform(-0.2, 0.2)
            y = rng.uniform(-0.2, 0.2)
            if norm(np.array([x, y])) < 0.2:
                break
        data.qpos[n - 2], data.qpos[n - 1] = x, y
        for i in range(data.qvel.size):
            data.qvel[i] = 0.0 + rng.uniform(-0.005, 0.005)
        data.qvel[data.qvel.size - 2 :] = 0.0

    @staticmethod
    def after_step(data: Any, state: State, action: NDArray[np.float32], params: Params) -> tuple[float, bool]:
        """Charge distance and control."""
        state.reward_dist = -distance(data, params.fingertip, params.target) * params.reward_dist_weight
        control = negative_control(action, params.reward_control_weight)
        state.reward_ctrl = control
        return state.reward_dist + control, False

    @staticmethod
    def observe(data: Any, params: Params, out: NDArray[np.float64]) -> None:
        """Write angles, the target, velocities, and the way to the target."""
        for i in range(2):
            out[i], out[2 + i] = math.cos(data.qpos[i]), math.sin(data.qpos[i])
            out[4 + i], out[6 + i] = data.qpos[2 + i], data.qvel[i]
            out[8 + i] = data.xpos[params.fingertip, i] - data.xpos[params.target, i]


class Pusher(Task):
    """Gymnasium's Pusher-v5: the same spaces, draws, rewards and ends."""

    model = f"{ASSETS}pusher_v5.xml"
    frame_skip = 5
    max_episode_steps = 100
    observation_space = unbounded(23)
    info_fields = ("reward_dist", "reward_ctrl", "reward_near")
    fixed_params = ("tip", "thing", "goal")

    class State(Task.State):
        """Infos of the last step."""

        reward_dist: float
        reward_ctrl: np.float32
        reward_near: float

    class Params(Task.Params):
        """Gymnasium's arguments, and numbers of bodies."""

        reward_near_weight: float = 0.5
        reward_dist_weight: float = 1.0
        reward_control_weight: float = 0.1
        tip: int = 0
        thing: int = 0
        goal: int = 0

    @classmethod
    def read_params(cls, model: Any, params: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters, with the numbers of bodies."""
        bodies = {"tip": "tips_arm", "thing": "object", "goal": "goal"}
        return {**params, **{name: model.body(body).id for name, body in bodies.items()}}

    @staticmethod
    def reset(data: Any, model: Any, rng: np.random.Generator) -> None:
        """Begin in the model's pose, with the object away from the goal."""
        while True:
            x = rng.uniform(-0.3, 0.0)
            y = rng.uniform(-0.2, 0.2)
            if norm(np.array([x, y])) > 0.17:
                break
        n = data.qpos.size
        data.qpos[n - 4], data.qpos[n - 3] = x, y
        data.qpos[n - 2 :] = 0.0
        for i in range(data.qvel.size):
            data.qvel[i] = 0.0 + rng.uniform(-0.005, 0.005)
        data.qvel[data.qvel.size - 4 :] = 0.0

    @staticmethod
    def after_step(data: Any, state: State, action: NDArray[np.float32], params: Params) -> tuple[float, bool]:
        """Charge distances and control."""
        state.reward_near = -distance(data, params.thing, params.tip) * params.reward_near_weight
        state.reward_dist = -distance(data, params.thing, params.goal) * params.reward_dist_weight
        control = negative_control(action, params.reward_control_weight)
        state.reward_ctrl = control
        return state.reward_dist + control + state.reward_near, False

    @staticmethod
    def observe(data: Any, params: Params, out: NDArray[np.float64]) -> None:
        """Write angles, velocities, and where hand, object and goal are."""
        out[:7] = data.qpos[:7]
        out[7:14] = data.qvel[:7]
        for j in range(3):
            out[14 + j] = data.xpos[params.tip, j]
            out[17 + j] = data.xpos[params.thing, j]
            out[20 + j] = data.xpos[params.goal, j]
