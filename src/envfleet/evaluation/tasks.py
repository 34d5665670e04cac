"""One pool of sub-environments for many tasks: each builds the environment of a task when it is needed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from envfleet.errors import InvalidArgument
from envfleet.options import Options
from envfleet.sources import Blueprint, name_source
from envfleet.workers.builders import EnvBuilder

TASK = "envfleet/task"
"""Key of the reset options that chooses the task."""


class TaskEnv(gym.Env[Any, Any]):
    """Environment that becomes another task by `reset(options={TASK: number})`.

    It holds one task at a time, so memory does not grow with the number of tasks.

    Args:
        builders: Builders of the tasks.
        first: Task to begin with; all others must have its spaces.
    """

    def __init__(self, builders: Sequence[EnvBuilder], first: int) -> None:
        self._builders, self._task = builders, first
        self._env: gym.Env[Any, Any] = builders[first].build({})
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space
        self.metadata, self.render_mode = self._env.metadata, self._env.render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the task that `options` choose, or the last one."""
        options = dict(options or {})
        self._choose(options.pop(TASK, self._task))
        return self._env.reset(seed=seed, options=options or None)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the task."""
        return self._env.step(action)

    def render(self) -> Any:
        """Render the task."""
        return self._env.render()

    def close(self) -> None:
        """Close the task."""
        self._env.close()

    def _choose(self, task: int) -> None:
        if task == self._task:
            return
        self._env.close()
        self._env = self._builders[task].build({})
        self._task = task
        task_spaces = self._env.observation_space, self._env.action_space
        if task_spaces != (self.observation_space, self.action_space):
            raise InvalidArgument(
                f"task {task} has observations {task_spaces[0]} and actions {task_spaces[1]}, expected those of the "
                f"first task, {self.observation_space} and {self.action_space}: evaluate tasks with other spaces apart"
            )


def task_functions(
    tasks: Sequence[Any], first: Sequence[int], env_kwargs: dict[str, Any]
) -> list[functools.partial[TaskEnv]]:
    """Return one function per sub-environment, each of which makes a `TaskEnv`.

    Args:
        tasks: Environments as `envfleet.make` takes them, except lists.
        first: First task of each sub-environment.
        env_kwargs: Arguments of all of them.
    """
    builders = [Blueprint(task, 1, Options(), env_kwargs).builders(0)[0] for task in tasks]
    return [functools.partial(TaskEnv, builders, task) for task in first]


def name_tasks(tasks: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of tasks, with a number where several have one name."""
    names = [name_source(task) for task in tasks]
    return tuple(f"{name} ({number})" if names.count(name) > 1 else name for number, name in enumerate(names))
