"""Build the engine of Python sub-environments for a backend: spread the builders, choose the transport, start it."""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from envfleet.errors import InvalidArgument
from envfleet.fleet.stats import Plan
from envfleet.machine import whole_cores
from envfleet.options import Options
from envfleet.workers.builders import EnvBuilder
from envfleet.workers.engine import WorkersEngine
from envfleet.workers.env_group import GroupPlan
from envfleet.workers.shared import read_shared
from envfleet.workers.transport import Transport

MakeTransport = Callable[[Sequence[GroupPlan], dict[str, Any], Options], Transport]


def plan_workers(options: Options, num_envs: int, *, reason: str, count: int | None = None) -> Plan:
    """Spread sub-environments over workers; by default one worker per usable core.

    Args:
        options: `backend`, `workers` and `envs_per_worker` are used.
        num_envs: How many sub-environments.
        reason: Why this backend was chosen.
        count: Workers, if the options do not say.
    """
    if options.backend == "serial":
        return Plan("serial", 1, (num_envs,), reason)
    each = options.envs_per_worker
    if each is not None:
        sizes = [each] * (num_envs // each) + ([num_envs % each] if num_envs % each else [])
    else:
        count = min(options.workers or count or whole_cores(), num_envs)
        sizes = [num_envs // count + (index < num_envs % count) for index in range(count)]
    return Plan(options.backend, len(sizes), tuple(sizes), reason)


def build_engine(
    builders: Sequence[EnvBuilder], plan: Plan, options: Options, make_transport: MakeTransport
) -> WorkersEngine:
    """Start the workers of a plan.

    Args:
        builders: One per sub-environment.
        plan: How to spread them.
        options: Of the fleet; a seed is drawn if there is none.
        make_transport: Makes the transport from the plans of workers, the shared data and the options.

    Raises:
        InvalidArgument: An option does not fit the backend.
        EnvfleetError: As `WorkersEngine`.
    """
    if options.recycle_episodes is not None:
        _check_recycling(plan, options)
    shared = read_shared(options.shared)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    options = dataclasses.replace(options, seed=seed)
    travelling = dataclasses.replace(options, shared=None, ray_options=None)  # workers get shared data by descriptor
    plans, start = [], 0
    for worker, size in enumerate(plan.envs_per_worker):
        plans.append(GroupPlan(worker, range(start, start + size), tuple(builders[start : start + size]), travelling))
        start += size
    return WorkersEngine(plans, plan, options, make_transport(plans, shared, options))


def _check_recycling(plan: Plan, options: Options) -> None:
    if max(plan.envs_per_worker) > 1 or options.autoreset_mode.name == "SAME_STEP":
        raise InvalidArgument(
            f"recycle_episodes={options.recycle_episodes} with {max(plan.envs_per_worker)} sub-environments per worker "
            f"and {options.autoreset_mode.name}: a worker can only be replaced between episodes, so pass "
            "envs_per_worker=1 and autoreset_mode NEXT_STEP or DISABLED"
        )


def make_serial(plans: Sequence[GroupPlan], shared: dict[str, Any], options: Options) -> Transport:
    """Run sub-environments in the caller's thread."""
    from envfleet.workers.transports.inline import InlineTransport

    return InlineTransport(plans, shared)


def make_threads(plans: Sequence[GroupPlan], shared: dict[str, Any], options: Options) -> Transport:
    """Run sub-environments in threads."""
    from envfleet.workers.transports.thread import ThreadTransport

    return ThreadTransport(plans, shared)


def make_processes(plans: Sequence[GroupPlan], shared: dict[str, Any], options: Options) -> Transport:
    """Run sub-environments in worker processes."""
    if os.name != "posix":
        raise InvalidArgument(
            'backend="process" on a system that is not POSIX, without which there are no worker processes: pass '
            'backend="thread" or "serial"'
        )
    from envfleet.workers.transports.process import ProcessTransport

    return ProcessTransport(plans, shared)
