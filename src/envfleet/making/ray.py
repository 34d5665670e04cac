"""Fleets whose workers Ray places."""

from __future__ import annotations

from envfleet.core.fleet import Fleet
from envfleet.errors import MissingDependency
from envfleet.making.assembly import Blueprint
from envfleet.making.planning import fixed_plan


def make_ray_fleet(blueprint: Blueprint, workers: int | None, envs_per_worker: int | None) -> Fleet:
    """Build a fleet on the Ray cluster; unless told, one worker per CPU of it.

    Raises:
        MissingDependency: Ray is not installed.
        EnvfleetError: There is no cluster, and none can be started.
        WorkersUnplaced: Ray did not find a place for every worker.
    """
    try:
        from envfleet.transports.ray.cluster import cluster, num_cpus
    except ImportError as error:
        raise MissingDependency(
            f"backend=\"ray\" needs Ray, which cannot be imported here ({error}): pip install 'envfleet[ray]'"
        ) from error
    num_envs = len(blueprint.builders)
    with cluster.held():  # so that one that is started to be counted is still there for the fleet
        plan = fixed_plan("ray", num_envs, workers or num_cpus(), envs_per_worker, None, "as asked for")
        return blueprint.build(plan)
