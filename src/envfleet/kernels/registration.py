"""Registration of kernels with Gymnasium."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from envfleet.kernels.kernel import Kernel, find_kernel

_ENTRY_POINT = "envfleet.kernels.env:KernelEnv"
_VECTOR_ENTRY_POINT = "envfleet.kernels.engine:make_vector"
_TWINS: dict[str, str] = {}  # id of an environment -> id of the kernel that equals it


def register(
    env_id: str,
    kernel: type[Kernel] | str,
    *,
    max_episode_steps: int | None = None,
    twin_of: str | None = None,
    **kwargs: Any,
) -> None:
    """Register a kernel with Gymnasium.

    Then `gymnasium.make(env_id)` makes one environment; `gymnasium.make_vec(env_id, num_envs,
    vectorization_mode="vector_entry_point")` and `envfleet.make(env_id, num_envs, backend="kernel")` make many.

    Args:
        env_id: Id such as `"namespace/Name-v0"`.
        kernel: The class, or its name `"package.module:Name"`, which is imported when it is needed.
        max_episode_steps: Time limit; by default the class's, or no limit if `kernel` is a name.
        twin_of: Id of the Python environment that the kernel equals; `envfleet bench` and `doctor` of that environment
            then also show the kernel.
        **kwargs: Arguments of `gymnasium.register`.

    Raises:
        KernelError: `kernel` is neither a kernel nor a name.
    """
    declared = None if isinstance(kernel, str) else find_kernel(kernel).max_episode_steps
    gym.register(
        env_id,
        entry_point=_ENTRY_POINT,
        vector_entry_point=_VECTOR_ENTRY_POINT,
        max_episode_steps=declared if max_episode_steps is None else max_episode_steps,
        kwargs={"kernel": kernel},
        **kwargs,
    )
    if twin_of is not None:
        _TWINS[twin_of] = env_id


def find_twin(env_id: str) -> str | None:
    """Return the id of the kernel that equals a Python environment, or `None`."""
    return _TWINS.get(env_id)


def find_original(kernel_id: str) -> str | None:
    """Return the id of the Python environment that a kernel equals, or `None`."""
    return next((env_id for env_id, twin in _TWINS.items() if twin == kernel_id), None)


def is_kernel(spec: EnvSpec) -> bool:
    """Return whether a registered environment is a kernel."""
    return spec.entry_point == _ENTRY_POINT
