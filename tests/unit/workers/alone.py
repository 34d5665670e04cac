"""A worker's sub-environments without a fleet around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from envfleet.fleet.layout import SpaceLayout
from envfleet.options import read_options
from envfleet.workers.arrays import ArraysSpec, FleetArrays
from envfleet.workers.builders import EnvBuilder
from envfleet.workers.messages import GroupPlan


def plan_of(env_fns: Sequence[Callable[..., gym.Env[Any, Any]]], first: int = 0, **options: Any) -> GroupPlan:
    """Return the plan of a worker; its rows begin at `first`."""
    builders = tuple(EnvBuilder(env_fn) for env_fn in env_fns)
    return GroupPlan(0, range(first, first + len(env_fns)), builders, read_options(seed=0, **options))


def arrays_of(env: gym.Env[Any, Any], num_envs: int, *, has_finals: bool = False) -> tuple[ArraysSpec, FleetArrays]:
    """Return arrays on the heap for sub-environments like `env`."""
    layouts = SpaceLayout(env.observation_space), SpaceLayout(env.action_space)
    spec = ArraysSpec(*layouts, num_envs, has_finals)
    return spec, FleetArrays(spec, spec.block.allocate())
