"""Engines and fleets of kernels; `make_vector` is what `gymnasium.make_vec` calls for registered ones."""

from __future__ import annotations

from typing import Any

from envfleet.fleet.fleet import Fleet
from envfleet.kernels.engine import KernelEngine
from envfleet.kernels.kernel import Kernel, choose_kernel, read_kernel
from envfleet.options import Options, read_options

_OPTIONS = ("autoreset_mode", "copy", "debug", "device", "final_infos", "record_episodes", "seed", "workers")


def make_engine(
    kernel: type[Kernel] | str, num_envs: int, options: Options, max_episode_steps: int | None, **kwargs: Any
) -> KernelEngine:
    """Make the engine of a kernel.

    Args:
        kernel: The kernel, or `"module:Name"` of it.
        num_envs: How many sub-environments.
        options: Of the fleet.
        max_episode_steps: The time limit.
        **kwargs: `env_spec`, `render_mode`, and parameters of the kernel.
    """
    given = {name: kwargs.pop(name) for name in ("env_spec", "render_mode") if name in kwargs}
    chosen, params = choose_kernel(kernel, kwargs)
    return KernelEngine(read_kernel(chosen), num_envs, options, max_episode_steps, **given, **params)


def make_vector(
    kernel: type[Kernel] | str, num_envs: int, max_episode_steps: int | None = None, **kwargs: Any
) -> Fleet:
    """Make a fleet of a kernel.

    Args:
        kernel: The kernel, or `"module:Name"` of it.
        num_envs: How many sub-environments.
        max_episode_steps: The time limit.
        **kwargs: Options of `envfleet.make` that kernels have; all others are parameters of the kernel.
    """
    options = read_options(backend="kernel", **{name: kwargs.pop(name) for name in _OPTIONS if name in kwargs})
    return Fleet(make_engine(kernel, num_envs, options, max_episode_steps, **kwargs))
