"""Small tasks for tests: a pendulum with a motor."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.physics import Task

XML = """
<mujoco><option timestep="0.01"/><worldbody><body name="arm"><joint name="hinge" axis="0 1 0" damping="0.1"/>
<geom type="capsule" fromto="0 0 0 0 0 -1" size="0.05"/></body></worldbody>
<actuator><motor joint="hinge" ctrlrange="-1 1"/></actuator></mujoco>
"""


class Arm(Task):
    model = XML
    frame_skip = 2
    max_episode_steps = 7
    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)
    info_fields = ("angle", "effort")
    reset_info_fields = ("angle",)

    class State(Task.State):
        angle: float
        effort: np.float32

    class Params(Task.Params):
        cost: float = 0.1

    @staticmethod
    def reset(data: Any, rng: np.random.Generator) -> None:
        data.qpos[0] = rng.uniform(-0.5, 0.5)
        data.qvel[0] = rng.standard_normal()

    @staticmethod
    def after_reset(data: Any, state: State) -> None:
        state.angle = data.qpos[0]

    @staticmethod
    def after_step(data: Any, state: State, action: NDArray[np.float32], params: Params) -> tuple[float, bool]:
        state.angle = data.qpos[0]
        state.effort = np.sum(np.square(action))
        return data.qvel[0] - params.cost * state.effort, abs(state.angle) > 0.6

    @staticmethod
    def observe(data: Any, model: Any, out: NDArray[np.float64]) -> None:
        out[0] = data.qpos[0]
        out[1] = data.qvel[0]
        out[2] = data.time
        out[3] = model.body_mass[1]


class Gusts(Arm):
    """Draws at every step, and sets its limits itself."""

    @staticmethod
    def before_step(data: Any, action: NDArray[np.float32], rng: np.random.Generator) -> None:
        data.ctrl[0] = action[0]
        data.qfrc_applied[0] = rng.normal(0.0, 0.5)

    @staticmethod
    def after_step(data: Any, state: Arm.State) -> tuple[float, bool, bool]:  # type: ignore[override]
        state.angle = data.qpos[0]
        return data.qvel[0], False, data.time > 0.1


class Explosion(Arm):
    @staticmethod
    def before_step(data: Any, action: NDArray[np.float32]) -> None:
        data.qfrc_applied[0] = 1e300 * action[0]
