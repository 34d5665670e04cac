"""Backend `native`: compiled tasks and kernels, and vector environments that packages register."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from envfleet.errors import InvalidArgument
from envfleet.fleet.engine import Engine
from envfleet.kernels.engine import make_engine
from envfleet.kernels.registration import find_twin
from envfleet.physics.simulations import has_batches
from envfleet.physics.task import Task, find_task, is_task
from envfleet.registry import ENVIRONMENTS, TASKS
from envfleet.sources import Blueprint, find_spec, is_kernel_class, kernel_spec

_OF_RENDERER = ("default_camera_config", "width", "height", "camera_id", "camera_name", "max_geom", "visual_options")
_OF_TASK = ("xml_file", "frame_skip", "render_mode", "max_episode_steps", "disable_env_checker")
_ANY_NUMBER = ("_weight", "_scale")
"""Suffixes of arguments for which an int gives the same results as a float; other ints change dtypes of infos."""

UNKNOWN = (
    "it is a callable, of which only the Python code is known",
    "no kernel, task or vector_entry_point of it is registered",
)
"""Reasons for the absence of a native implementation that no other argument or version changes."""


@dataclasses.dataclass(frozen=True)
class Native:
    """Native implementation of an environment.

    Attributes:
        kind: `"task"`, `"kernel"` or `"vector"`.
        target: The task or kernel, or `"module:Name"` of it, or the spec with a `vector_entry_point`.
        kwargs: Its arguments.
        spec: Gymnasium's spec of the environment, if it has one.
        is_equal: True if it equals the environment in every bit.
    """

    kind: str
    target: Any
    kwargs: Mapping[str, Any]
    spec: EnvSpec | None = None
    is_equal: bool = False

    def __str__(self) -> str:
        if self.kind == "vector":
            return "the package's own vector environment"
        equality = ", equal to the original in every bit" if self.spec and self.is_equal else ""
        return f"a compiled {self.kind}{equality}"


def find_native(blueprint: Blueprint) -> Native | str:
    """Return the native implementation of an environment, or the reason for its absence."""
    source, kwargs = blueprint.source, dict(blueprint.env_kwargs)
    if is_task(source):
        return Native("task", source, kwargs, is_equal=True)
    if is_kernel_class(source):
        return Native("kernel", source, kwargs)
    if not isinstance(source, (str, EnvSpec)):
        return UNKNOWN[0]
    return _find_registered(find_spec(source), kwargs)


def _find_registered(spec: EnvSpec, kwargs: dict[str, Any]) -> Native | str:
    if kernel_spec(spec) is not None:
        return Native("kernel", spec.kwargs["kernel"], {**spec.kwargs, **kwargs}, spec)
    if isinstance(spec.entry_point, str) and spec.entry_point in TASKS:
        return _find_task(spec, {**spec.kwargs, **kwargs})
    twin = find_twin(spec.id) or f"envfleet/{spec.id.replace('/', '-')}"
    if twin in ENVIRONMENTS and ENVIRONMENTS[twin].is_kernel:
        return Native("kernel", ENVIRONMENTS[twin].target, {**spec.kwargs, **kwargs}, gym.spec(twin))
    if spec.vector_entry_point is not None:
        return Native("vector", spec, kwargs, spec)
    return UNKNOWN[1]


def _missing_packages() -> str | None:
    """Return the reason why no MuJoCo task can run natively here, if there is one."""
    if importlib.util.find_spec("mujoco") is None:
        return "mujoco is not installed (pip install 'envfleet[mujoco]')"
    if not has_batches():
        return "MuJoCo older than 3.17 has no batched simulation"
    if importlib.util.find_spec("numba") is None:
        return "numba, which compiles tasks, is not installed"
    return None


def _find_task(spec: EnvSpec, env_kwargs: dict[str, Any]) -> Native | str:
    """Return the task that equals a MuJoCo environment of Gymnasium, or the reason for using the original."""
    if (reason := _missing_packages()) is not None:
        return reason
    if spec.additional_wrappers:
        return f"it has the wrapper {spec.additional_wrappers[0].name}"
    task = find_task(TASKS[str(spec.entry_point)])
    if env_kwargs.get("render_mode") not in (None, "rgb_array"):
        return f"render_mode={env_kwargs['render_mode']!r} needs the original"
    for name, value in env_kwargs.items():
        if name not in (*_OF_RENDERER, *_OF_TASK) and not _is_same(task, name, value):
            return f"{name}={value!r} needs the original"
    kwargs = {name: value for name, value in env_kwargs.items() if name not in (*_OF_RENDERER, *_OF_TASK)}
    kwargs["renderer"] = {name: env_kwargs[name] for name in _OF_RENDERER if name in env_kwargs}
    for name in ("frame_skip", "render_mode", "max_episode_steps"):
        if name in env_kwargs:
            kwargs[name] = env_kwargs[name]
    kwargs.setdefault("max_episode_steps", spec.max_episode_steps or -1)
    if "xml_file" in env_kwargs:
        from gymnasium.envs.mujoco.mujoco_env import expand_model_path

        kwargs["model"] = expand_model_path(env_kwargs["xml_file"])
    return Native("task", task, kwargs, spec, is_equal=True)


def _is_same(task: type[Task], name: str, value: Any) -> bool:
    """Return whether a parameter of a task has the effect of this argument of the original."""
    default = getattr(task.Params, name, None)
    if default is None or name == "dt":
        return False
    if isinstance(default, np.ndarray):
        return isinstance(value, (tuple, list)) and all(type(one) in (int, float) for one in value)
    if isinstance(default, float):
        return type(value) is float or (type(value) is int and name.endswith(_ANY_NUMBER))
    return type(value) is type(default) or (type(default) is int and isinstance(value, str))


def build_native(blueprint: Blueprint, reason: str) -> Engine:
    """Build an engine of native code.

    Raises:
        InvalidArgument: The environment lacks a native implementation.
        KernelError: It cannot be compiled.
    """
    native, options = find_native(blueprint), blueprint.options
    if isinstance(native, str):
        raise InvalidArgument(
            f"backend='native' with {blueprint.source!r}, but {native}: omit backend, or pass a task or kernel"
        )
    if native.kind != "kernel":
        for name in ("device", "stream", "debug"):
            if name in options.non_default():
                raise InvalidArgument(
                    f"{name}={getattr(options, name)!r} needs a kernel, this is {native}: leave it out"
                )
    if native.kind == "task":
        from envfleet.physics.engine import PhysicsEngine

        return PhysicsEngine(
            native.target, blueprint.num_envs, options, reason=reason, env_spec=native.spec, **native.kwargs
        )
    if options.on_failure == "restart":
        raise InvalidArgument(
            f"on_failure='restart' with backend='native' needs a MuJoCo task, this is {native}: leave it out, or pass "
            "backend='process', which steps the Python environment"
        )
    if native.kind == "kernel":
        kwargs = {name: value for name, value in native.kwargs.items() if name not in ("kernel", "max_episode_steps")}
        limit = native.kwargs.get("max_episode_steps", native.spec.max_episode_steps if native.spec else None)
        return make_engine(native.target, blueprint.num_envs, options, limit, env_spec=native.spec, **kwargs)
    return _build_vector(native, blueprint)


def _build_vector(native: Native, blueprint: Blueprint) -> Engine:
    """Adopt the vector environment that a package registered."""
    from envfleet.adopted import AdoptedEngine

    options = blueprint.options
    if options.workers is not None:
        raise InvalidArgument(f"workers={options.workers} with {native}, which has its own options: omit it")
    vector_env: Any = gym.make_vec(
        native.target,
        blueprint.num_envs,
        vectorization_mode="vector_entry_point",
        **{"autoreset_mode": options.autoreset_mode, **native.kwargs},
    )
    mode = vector_env.metadata.get("autoreset_mode")
    if mode is not options.autoreset_mode:
        vector_env.close()
        raise InvalidArgument(
            f"autoreset_mode={options.autoreset_mode.name} with {native}, which has {mode}: pass that mode"
        )
    return AdoptedEngine(vector_env, record_episodes=options.record_episodes)
