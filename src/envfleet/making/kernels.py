"""Kernels as a person may give them to `make`, and their fleets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit

from envfleet.errors import InvalidArgument
from envfleet.kernels.kernel import Kernel, find_kernel
from envfleet.kernels.registration import find_twin, is_kernel
from envfleet.making.options import Options, read_autoreset_mode
from envfleet.making.registered import find_spec

if TYPE_CHECKING:
    from envfleet.kernels.fleet import KernelFleet


class KernelMaker:
    """Makes one environment of a kernel that is given as a class, with its time limit.

    Args:
        kernel: The class.
        kwargs: `render_mode`, `max_episode_steps`, and parameters of the kernel.
    """

    def __init__(self, kernel: type[Kernel], kwargs: dict[str, Any]) -> None:
        self._kernel, self._kwargs = kernel, dict(kwargs)
        self._limit = self._kwargs.pop("max_episode_steps", kernel.max_episode_steps)

    def __call__(self, **shared: Any) -> gym.Env[Any, Any]:
        """Make one; `shared` are shared arrays, as more parameters."""
        from envfleet.kernels.env import KernelEnv
        from envfleet.kernels.requests import read_limit

        env = KernelEnv(self._kernel, **self._kwargs, **shared)
        limit = read_limit(self._limit)
        return env if limit is None else TimeLimit(env, limit)


def is_kernel_class(source: Any) -> TypeGuard[type[Kernel]]:
    """Whether somebody gave a kernel itself."""
    return isinstance(source, type) and issubclass(source, Kernel)


def kernel_spec(source: Any) -> EnvSpec | None:
    """The registered kernel that a Gymnasium id or spec means, if it means one."""
    if not isinstance(source, (str, EnvSpec)):
        return None
    spec = find_spec(source)
    return spec if is_kernel(spec) else None


def names_kernel(source: Any) -> bool:
    """Whether somebody gave a kernel, or the id or spec of a registered one."""
    return is_kernel_class(source) or kernel_spec(source) is not None


def make_kernel_fleet(source: Any, num_envs: int, options: Options, env_kwargs: Mapping[str, Any]) -> KernelFleet:
    """Make a fleet of a kernel.

    Args:
        source: A kernel, or the id or spec of a registered one.
        num_envs: How many.
        options: Checked.
        env_kwargs: `render_mode`, `max_episode_steps`, and parameters.

    Raises:
        InvalidArgument: `source` is no kernel.
        KernelError: It cannot be compiled.
    """
    from envfleet.kernels.vector import make_vector

    spec = kernel_spec(source)
    if spec is None and not is_kernel_class(source):
        env_id = source.id if isinstance(source, EnvSpec) else source
        twin = find_twin(env_id)
        advice = (
            f"did you mean {twin!r}?"
            if twin is not None
            else "pass a subclass of envfleet.kernels.Kernel or the id of a registered one (`envfleet envs` lists "
            "them), or choose another backend"
        )
        raise InvalidArgument(f'backend="kernel" needs a kernel, got {source!r}: {advice}')
    kwargs = {**(spec.kwargs if spec else {"kernel": source}), **env_kwargs}
    kernel = find_kernel(kwargs.pop("kernel"))
    limit = kwargs.pop("max_episode_steps", spec.max_episode_steps if spec else kernel.max_episode_steps)
    return make_vector(
        kernel,
        num_envs,
        limit,
        autoreset_mode=read_autoreset_mode(options.autoreset_mode),
        workers=options.workers,
        copy=options.copy,
        device=options.device,
        debug=options.debug,
        seed=options.seed,
        env_spec=spec,
        **kwargs,
    )
