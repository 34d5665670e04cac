"""Engine of tasks: MuJoCo simulations with compiled rewards, ends and observations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.fleet import engine as seam
from envfleet.fleet.stats import Plan
from envfleet.kernels.batch_base import BatchBase
from envfleet.kernels.engine import KernelEngine
from envfleet.options import Options
from envfleet.physics.batch import TaskBatch
from envfleet.physics.infos import TaskInfos
from envfleet.physics.opengl import require_opengl
from envfleet.physics.task import Task, find_task, load_model, read_frame_skip, read_task

ModelFields = Mapping[str, Any] | Callable[[Any, np.random.Generator], Mapping[str, Any]]
"""Values of fields of MuJoCo's model: arrays `(num_envs, …)` by name, or a function of the model and a generator that
returns those of one sub-environment."""

RENDER_MODES = ("rgb_array", "depth_array")


class PhysicsEngine(KernelEngine):
    """Sub-environments of one task, stepped in MuJoCo's thread pool.

    Args:
        task: The task, or `"module:Name"` of it.
        num_envs: Number of sub-environments.
        options: Options of the fleet.
        reason: Why this engine was chosen.
        max_episode_steps: Time limit; by default that of the task, -1 for none.
        env_spec: Gymnasium's spec, if the environment has one.
        render_mode: `"rgb_array"` or `None`.
        renderer: Keywords of Gymnasium's `MujocoRenderer`.
        model: Model to use instead of that of the task: a path, `"package:path"`, or XML text.
        frame_skip: Steps of MuJoCo in one step; by default that of the task.
        model_fields: Values of fields of the model for each sub-environment.
        **params: Parameters of the task, one value each or one per sub-environment.

    Raises:
        InvalidArgument: An argument has an invalid value.
        MissingDependency: There is a `render_mode`, but OpenGL does not work.
        KernelError: The task cannot be compiled.
    """

    def __init__(
        self,
        task: type[Task] | str,
        num_envs: int,
        options: Options,
        *,
        reason: str = "as asked for",
        max_episode_steps: int | None = None,
        env_spec: Any = None,
        render_mode: str | None = None,
        renderer: Mapping[str, Any] | None = None,
        model: str | None = None,
        frame_skip: int | None = None,
        model_fields: ModelFields | None = None,
        **params: Any,
    ) -> None:
        if render_mode is not None:
            require_opengl()
        task_class = find_task(task)
        loaded, skip = load_model(model or task_class.model), read_frame_skip(task_class, frame_skip)
        spec, read = read_task(task_class, loaded, skip, params)
        self._renderer_options = {"width": 480, "height": 480, **(renderer or {})}
        self._renderer: tuple[Any, Any, Any] | None = None
        self._model_fields = _stack_fields(model_fields, loaded, num_envs, options.seed)
        limit = task_class.max_episode_steps if max_episode_steps is None else max_episode_steps
        super().__init__(spec, num_envs, options, limit, env_spec=env_spec, render_mode=render_mode, **read)
        workers, each = self.traits.plan.num_workers, self.traits.plan.envs_per_worker
        plan = Plan("native", workers, each, f"{reason}; {spec.name} compiled, {self._batch.threads}")
        fps = {"render_modes": list(RENDER_MODES), "render_fps": round(1.0 / (loaded.opt.timestep * skip))}
        self.traits = dataclasses.replace(self.traits, plan=plan, has_rollouts=False, metadata=fps)
        self._infos = TaskInfos(self._batch, options)

    def _make_batch(
        self, spec: Any, num_envs: int, options: Options, params: dict[str, Any], limit: int | None
    ) -> BatchBase:
        return TaskBatch(spec, num_envs, options, params, limit, model_fields=self._model_fields)

    def _call(self, request: seam.Call) -> Any:
        if request.name == "render" and self.traits.render_mode is not None:
            return [self._render(row) for row in range(self._num_envs)]
        return super()._call(request)

    def _render(self, row: int) -> Any:
        import mujoco
        from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer

        batch: TaskBatch = self._batch
        if self._renderer is None:
            model = batch.simulations.model_of(row)
            data = mujoco.MjData(model)
            self._renderer = MujocoRenderer(model, data, **self._renderer_options), model, data
        view, model, data = self._renderer
        if self._model_fields:
            batch.simulations.read_model(row, model)
        mujoco.mj_setState(model, data, batch.simulations.state[row], mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_forward(model, data)
        return view.render(self.traits.render_mode)

    def close(self, timeout_s: float) -> list[Any]:
        """Release threads, memory and the renderer."""
        if self._renderer is not None:
            self._renderer[0].close()
            self._renderer = None
        return super().close(timeout_s)


def _stack_fields(
    model_fields: ModelFields | None, model: Any, num_envs: int, seed: int | None
) -> dict[str, NDArray[Any]]:
    """Return arrays `(num_envs, …)` by the name of a field."""
    if model_fields is None:
        return {}
    if isinstance(model_fields, Mapping):
        return {name: np.asarray(values) for name, values in model_fields.items()}
    if not callable(model_fields):
        raise InvalidArgument(
            f"model_fields is a {type(model_fields).__name__}, expected a dict of arrays by name, or a function "
            "(model, rng) that returns one for one sub-environment"
        )
    sources = np.random.SeedSequence(seed).spawn(num_envs)
    rows = [model_fields(model, np.random.default_rng(source)) for source in sources]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
