"""Fleets of registered kernels, for `gymnasium.make_vec`."""

from __future__ import annotations

from typing import Any

from envfleet.kernels.fleet import KernelFleet
from envfleet.kernels.kernel import Kernel, choose_kernel, read_kernel


def make_vector(
    kernel: type[Kernel] | str, num_envs: int, max_episode_steps: int | None = None, **kwargs: Any
) -> KernelFleet:
    """Make a fleet of a kernel.

    Args:
        kernel: The kernel, or `"module:Name"` of it.
        num_envs: How many sub-environments.
        max_episode_steps: The time limit.
        **kwargs: Options of `KernelFleet` by their names; all others are parameters of the kernel.
    """
    options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
    chosen, params = choose_kernel(kernel, kwargs)
    spec = read_kernel(chosen)
    return KernelFleet(spec, num_envs, params=params, max_episode_steps=max_episode_steps, **options)


_OPTIONS = ("autoreset_mode", "workers", "copy", "env_spec", "render_mode", "device", "debug", "seed")
