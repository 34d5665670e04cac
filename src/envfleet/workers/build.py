"""Spread sub-environments over workers."""

from __future__ import annotations

from envfleet.errors import InvalidArgument
from envfleet.fleet.stats import Plan
from envfleet.machine import whole_cores
from envfleet.options import Options


def plan_workers(options: Options, num_envs: int, *, reason: str, count: int | None = None) -> Plan:
    """Spread sub-environments over workers; by default one worker per usable core.

    Args:
        options: `backend`, `workers` and `envs_per_worker` are used.
        num_envs: How many sub-environments.
        reason: Why this backend was chosen.
        count: Workers, if the options do not say.

    Raises:
        InvalidArgument: `recycle_episodes` does not fit.
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
