"""A task as an ordinary Gymnasium environment, in plain Python: for debuggers, and as the reference in checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import TimeLimit

from envfleet.kernels.requests import check_params
from envfleet.physics.plain import PlainTask
from envfleet.physics.task import Task, find_task, load_model, read_frame_skip, read_task


class TaskEnv(gym.Env[Any, Any]):
    """One sub-environment of a task, run uncompiled; it stops at breakpoints and prints.

    Args:
        task: The task, or `"module:Name"` of it.
        model: Model to use instead of that of the task: a path, `"package:path"`, or XML text.
        frame_skip: Steps of MuJoCo in one step; by default that of the task.
        **params: Parameters of the task, one value each.

    Attributes:
        plain: The task's functions and MuJoCo's objects.
    """

    def __init__(
        self, task: type[Task] | str, *, model: str | None = None, frame_skip: int | None = None, **params: Any
    ) -> None:
        task_class = find_task(task)
        spec, values_read = read_task(
            task_class, load_model(model or task_class.model), read_frame_skip(task_class, frame_skip), params
        )
        record = spec.params.default_record()
        for name, values in check_params(spec, 1, {**spec.params.defaults, **values_read}, {}).items():
            record[name] = values
        self.plain = PlainTask(spec, record)
        self.observation_space, self.action_space = spec.observation.space, spec.action.space

    def _infos(self, names: tuple[str, ...]) -> dict[str, Any]:
        values = vars(self.plain.state)["_values"]
        return {name: values[name][0].copy() for name in names}

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.plain.rng = self.np_random
        return self.plain.reset(), self._infos(self.plain.spec.reset_info_fields)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step once."""
        return *self.plain.step(action), self._infos(self.plain.spec.info_fields)


def make_env(task: type[Task], max_episode_steps: int | None = None, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make a `TaskEnv` with a time limit; by default that of the task, -1 for none."""
    limit = task.max_episode_steps if max_episode_steps is None else max_episode_steps
    env = TaskEnv(task, **kwargs)
    return env if limit in (None, -1) else TimeLimit(env, limit)
