"""Built-in backends: each function makes an engine from a blueprint."""

from __future__ import annotations

import dataclasses
import functools
import os
import secrets
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from gymnasium.envs.registration import EnvSpec

from envfleet.errors import InvalidArgument, MissingDependency
from envfleet.fleet.engine import Engine
from envfleet.fleet.stats import Plan
from envfleet.kernels.kernel import find_kernel
from envfleet.kernels.registration import find_twin
from envfleet.machine import whole_cores
from envfleet.options import Options
from envfleet.registry import ENVIRONMENTS
from envfleet.sources import Blueprint, kernel_spec, names_kernel
from envfleet.workers.engine import WorkersEngine
from envfleet.workers.messages import GroupPlan
from envfleet.workers.shared import read_shared
from envfleet.workers.transport import Transport

MakeTransport = Callable[[Sequence[GroupPlan], dict[str, Any]], Transport]


def build_serial(blueprint: Blueprint, reason: str) -> Engine:
    """Build an engine in the caller's thread."""
    from envfleet.workers.transports.inline import InlineTransport

    return _build(blueprint, reason, InlineTransport)


def build_thread(blueprint: Blueprint, reason: str) -> Engine:
    """Build an engine over threads."""
    from envfleet.workers.transports.thread import ThreadTransport

    return _build(blueprint, reason, ThreadTransport)


def build_process(blueprint: Blueprint, reason: str) -> Engine:
    """Build an engine over worker processes."""
    if os.name != "posix":
        raise InvalidArgument('backend="process" requires a POSIX system: pass backend="thread" or "serial"')
    from envfleet.workers.transports.process import ProcessTransport

    _refuse_in_import()
    return _build(blueprint, reason, ProcessTransport)


def build_ray(blueprint: Blueprint, reason: str) -> Engine:
    """Build an engine over workers on a Ray cluster, by default one per CPU of the cluster.

    Raises:
        MissingDependency: Ray is not installed.
        WorkersUnplaced: Ray did not find a place for every worker.
    """
    try:
        from envfleet.workers.transports.ray.cluster import cluster, num_cpus
        from envfleet.workers.transports.ray.transport import make_ray
    except ImportError as error:
        raise MissingDependency(
            f"backend=\"ray\" needs Ray, which cannot be imported here ({error}): pip install 'envfleet[ray]'"
        ) from error
    _refuse_in_import()
    with cluster.held():  # so that one that is started to be counted is still there for the fleet
        make_transport = functools.partial(make_ray, blueprint.options)
        return _build(blueprint, reason, make_transport, count=blueprint.options.workers or num_cpus())


def _refuse_in_import() -> None:
    """Raise an error if a worker imports a module that makes a fleet, because its workers would do the same.

    Raises:
        InvalidArgument: This is a worker process that imports a module.
    """
    from envfleet.workers.transports.forkserver import import_all, run_job

    frames, imports = [frame for frame, _ in traceback.walk_stack(None)], (import_all.__code__, run_job.__code__)
    ends = [index for index, frame in enumerate(frames) if frame.f_code in imports]
    for frame in frames[: ends[0]] if ends else ():
        if frame.f_code.co_name == "<module>":
            raise InvalidArgument(
                f"the module {frame.f_globals['__name__']} makes a fleet when it is imported, and each worker that "
                "imports it would make another one: make the fleet in a function, or under "
                '`if __name__ == "__main__":`'
            )


def plan_workers(options: Options, num_envs: int, *, reason: str, count: int | None = None) -> Plan:
    """Distribute sub-environments over workers, by default one worker per usable core.

    Args:
        options: `backend`, `workers` and `envs_per_worker` are used.
        num_envs: Number of sub-environments.
        reason: Reason for the choice of the backend.
        count: Number of workers, if the options do not set it.

    Raises:
        InvalidArgument: `recycle_episodes` is not possible with this distribution.
    """
    if options.backend == "serial":
        return Plan("serial", 1, (num_envs,), reason)
    each = options.envs_per_worker
    if each is not None:
        sizes = [each] * (num_envs // each) + ([num_envs % each] if num_envs % each else [])
    else:
        count = min(options.workers or count or whole_cores(), num_envs)
        sizes = [num_envs // count + (index < num_envs % count) for index in range(count)]
    if options.recycle_episodes is not None and (max(sizes) > 1 or options.autoreset_mode.name == "SAME_STEP"):
        raise InvalidArgument(
            f"recycle_episodes={options.recycle_episodes} with {max(sizes)} sub-environments per worker and "
            f"{options.autoreset_mode.name}: a worker can only be replaced between episodes, so pass envs_per_worker=1 "
            "and autoreset_mode NEXT_STEP or DISABLED"
        )
    return Plan(options.backend, len(sizes), tuple(sizes), reason)


def _build(blueprint: Blueprint, reason: str, make_transport: MakeTransport, count: int | None = None) -> Engine:
    seed = secrets.randbits(32) if blueprint.options.seed is None else blueprint.options.seed
    options = dataclasses.replace(blueprint.options, seed=seed)
    plan, builders = plan_workers(options, blueprint.num_envs, reason=reason, count=count), blueprint.builders(seed)
    shared = read_shared(options.shared) if options.shared else {}
    traveling = dataclasses.replace(options, shared=None, ray_options=None)  # workers get shared data by descriptor
    plans, start = [], 0
    for worker, size in enumerate(plan.envs_per_worker):
        plans.append(GroupPlan(worker, range(start, start + size), tuple(builders[start : start + size]), traveling))
        start += size
    return WorkersEngine(plans, plan, options, make_transport(plans, shared))


def build_kernel(blueprint: Blueprint, reason: str) -> Engine:
    """Build an engine of compiled code.

    Raises:
        InvalidArgument: The source is not a kernel.
        KernelError: The kernel cannot be compiled.
    """
    from envfleet.kernels.engine import make_engine

    source, spec = blueprint.source, kernel_spec(blueprint.source)
    if not names_kernel(source):
        env_id = source.id if isinstance(source, EnvSpec) else str(source)
        of_packages = f"envfleet/{env_id.rpartition(':')[2].replace('/', '-')}"  # MiniGrid-…, MinAtar/…
        known = ENVIRONMENTS.get(of_packages)
        twin = find_twin(env_id) or (of_packages if known and known.is_kernel else None)
        advice = (
            f"did you mean {twin!r}?"
            if twin is not None
            else "pass a subclass of envfleet.kernels.Kernel or the id of a registered one (`envfleet envs` lists "
            "them), or choose another backend"
        )
        raise InvalidArgument(f'backend="kernel" needs a kernel, got {source!r}: {advice}')
    kwargs: dict[str, Any] = {**(spec.kwargs if spec else {"kernel": source}), **blueprint.env_kwargs}
    kernel = find_kernel(kwargs.pop("kernel"))
    limit = kwargs.pop("max_episode_steps", spec.max_episode_steps if spec else kernel.max_episode_steps)
    return make_engine(kernel, blueprint.num_envs, blueprint.options, limit, env_spec=spec, **kwargs)
