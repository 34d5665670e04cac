"""From an environment and options, checked, to the fleet of the backend that was asked for."""

from __future__ import annotations

import dataclasses
import secrets
from typing import TYPE_CHECKING, Any

from envfleet.core.arguments import check_whole
from envfleet.core.engine import EngineOptions
from envfleet.core.fleet import Fleet
from envfleet.core.shared import SharedArrays
from envfleet.making.assembly import Blueprint
from envfleet.making.kernels import make_kernel_fleet, names_kernel
from envfleet.making.keywords import check_keywords
from envfleet.making.options import Options, read_autoreset_mode
from envfleet.making.planning import choose, fixed_plan
from envfleet.making.ray import make_ray_fleet
from envfleet.making.sources import EnvSource, builders_of
from envfleet.transports.ray.options import RayOptions

if TYPE_CHECKING:
    from envfleet.kernels.fleet import KernelFleet


def make_fleet(env: EnvSource, num_envs: int, options: Options, env_kwargs: dict[str, Any]) -> Fleet | KernelFleet:
    """Make a fleet; arguments and exceptions are those of `envfleet.make`.

    Args:
        env: What the sub-environments are built from.
        num_envs: How many.
        options: Checked.
        env_kwargs: For `gymnasium.make`, or parameters of the kernel.
    """
    backend = options.backend
    if backend == "kernel" or (backend == "auto" and options.suits_kernel and names_kernel(env)):
        return make_kernel_fleet(env, num_envs, options, env_kwargs)
    if backend == "auto":
        options.check_without_kernel()
    check_keywords(env, env_kwargs, ["num_envs", *(field.name for field in dataclasses.fields(Options))])
    blueprint = _draw(env, num_envs, options, env_kwargs)
    workers, each, method = options.workers, options.envs_per_worker, options.start_method
    if backend == "ray":
        return make_ray_fleet(blueprint, workers, each)
    if backend != "auto":
        return blueprint.build(fixed_plan(backend, num_envs, workers, each, method, "as asked for"))
    if options.is_recycled:
        return blueprint.build(fixed_plan("process", num_envs, workers, each, method, "recycling needs processes"))
    return choose(blueprint, workers, each)


def _draw(env: EnvSource, num_envs: int, options: Options, env_kwargs: dict[str, Any]) -> Blueprint:
    shared = SharedArrays.local(options.shared)
    root_seed = secrets.randbits(32) if options.seed is None else options.seed
    batch_size = num_envs if options.batch_size is None else options.batch_size
    return Blueprint(
        builders=builders_of(env, num_envs, root_seed, tuple(shared.arrays), env_kwargs),
        shared=shared,
        options=EngineOptions(
            autoreset_mode=read_autoreset_mode(options.autoreset_mode),
            copy=options.copy,
            batch_size=check_whole("batch_size", batch_size, 1, num_envs, most_name="num_envs"),
            on_failure=options.on_failure,
            max_restarts=options.max_restarts,
            step_timeout_s=options.step_timeout_s,
            start_timeout_s=options.start_timeout_s,
            recycle_episodes=options.recycle_episodes,
            recycle_bytes=options.recycle_bytes,
            has_spares=options.spares,
            record_episodes=options.record_episodes,
            root_seed=root_seed,
        ),
        start_method=options.start_method,
        same_bounds=options.observation_mode == "same",
        ray_options=RayOptions.read(options.ray_options),
    )
