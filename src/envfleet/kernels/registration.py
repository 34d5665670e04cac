"""Kernels in Gymnasium's registry."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from envfleet.kernels.kernel import Kernel, find_kernel

_ENTRY_POINT = "envfleet.kernels.env:KernelEnv"
_VECTOR_ENTRY_POINT = "envfleet.kernels.engine:make_vector"
_TWINS: dict[str, str] = {}  # an environment's id -> that of the kernel that equals it


def register(
    env_id: str,
    kernel: type[Kernel] | str,
    *,
    max_episode_steps: int | None = None,
    twin_of: str | None = None,
    **kwargs: Any,
) -> None:
    """Register a kernel with Gymnasium.

    Then `gymnasium.make(env_id)` makes one, `gymnasium.make_vec(env_id, num_envs,
    vectorization_mode="vector_entry_point")` and `envfleet.make(env_id, num_envs, backend="kernel")` make many.

    Args:
        env_id: `"namespace/Name-v0"`.
        kernel: The class, or `"package.module:Name"` of it, which is not imported before it is needed.
        max_episode_steps: The time limit; by default that of the class, or none where only its name is given.
        twin_of: Id of the environment in Python that the kernel equals; `envfleet bench` and `doctor` of that one then
            show the kernel, too.
        **kwargs: For `gymnasium.register`.

    Raises:
        KernelError: It is neither a kernel nor a name.
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
    """Return the id of the kernel that equals an environment, or `None`."""
    return _TWINS.get(env_id)


def find_original(kernel_id: str) -> str | None:
    """Return the id of the environment that a kernel equals, or `None`."""
    return next((env_id for env_id, twin in _TWINS.items() if twin == kernel_id), None)


def is_kernel(spec: EnvSpec) -> bool:
    """Return whether a registered environment is a kernel."""
    return spec.entry_point == _ENTRY_POINT
