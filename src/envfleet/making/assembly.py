"""From builders and a plan to a running fleet."""

from __future__ import annotations

import dataclasses
from typing import Any

from gymnasium.vector import AutoresetMode

from envfleet.core.arrays import ArraysSpec
from envfleet.core.builders import EnvBuilder
from envfleet.core.checks import check_same_spaces
from envfleet.core.engine import Engine, EngineOptions
from envfleet.core.fleet import Fleet
from envfleet.core.group import GroupInfo, GroupOptions
from envfleet.core.shared import SharedArrays
from envfleet.core.stats import Plan
from envfleet.core.transport import GroupPlan, Transport
from envfleet.transports.inline import InlineTransport
from envfleet.transports.launch import StartMethod, default_start_method
from envfleet.transports.ray.options import RayOptions
from envfleet.transports.thread import ThreadTransport

_APART = frozenset({"process", "ray"})
"""Backends whose workers do not share the heap of this process."""

GIVE_UP_S = 1.0
"""What sub-environments that were built have to close, when others could not be."""


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """All of a fleet but its plan, checked: any number of fleets can be built from it.

    Attributes:
        builders: One per sub-environment.
        shared: Shared data, still in this process.
        options: How the fleet behaves.
        start_method: How processes start; `None` for the platform's default.
        same_bounds: Whether observation spaces must be equal.
        ray_options: What each worker asks of Ray.
        fleet_class: `Fleet` or a child of it.
    """

    builders: tuple[EnvBuilder, ...]
    shared: SharedArrays
    options: EngineOptions
    start_method: StartMethod | None
    same_bounds: bool
    ray_options: RayOptions = dataclasses.field(default_factory=RayOptions)
    fleet_class: type[Fleet] = Fleet

    def build(self, plan: Plan) -> Fleet:
        """Start the workers of `plan` and put a fleet on top.

        Raises:
            InvalidArgument: The sub-environments do not fit together.
            SubEnvError: One could not be built.
            WorkerDied: A worker ended while building.
            StartTimeout: Not all were built in time.
            WorkersUnplaced: Ray did not find a place for every worker.
            OutOfMemory: The arrays do not fit.
        """
        groups = self._group_plans(plan)
        shared = self.shared.to_processes() if plan.backend in _APART else self.shared
        try:
            transport = self._transport(plan, groups, shared)
        except BaseException:
            shared.close()
            raise
        try:
            infos = transport.start(self.options.start_timeout_s)
            self._check_infos(infos, groups)
            first = infos[0]
            spec = ArraysSpec(
                observation_space=first.observation_spaces[0],
                action_space=first.action_space,
                num_envs=len(self.builders),
                num_workers=plan.num_workers,
                has_finals=self.options.autoreset_mode is AutoresetMode.SAME_STEP,
                has_columns=plan.backend in _APART,
                has_origins=plan.backend != "serial",
            )
            engine = Engine(transport, infos, spec, groups, self.options, plan, shared.close)
        except BaseException:
            transport.close(GIVE_UP_S)
            shared.close()
            raise
        return self.fleet_class(engine)

    def _group_plans(self, plan: Plan) -> list[GroupPlan]:
        groups, start = [], 0
        for worker, size in enumerate(plan.envs_per_worker):
            options = GroupOptions(
                worker=worker,
                first_index=start,
                autoreset_mode=self.options.autoreset_mode,
                on_failure=self.options.on_failure,
                root_seed=self.options.root_seed,
                same_bounds=self.same_bounds,
                is_inline=plan.backend == "serial",
                step_timeout_s=self.options.step_timeout_s,
                has_spares=self.options.has_spares,
            )
            groups.append(GroupPlan(self.builders[start : start + size], options))
            start += size
        return groups

    def _transport(self, plan: Plan, groups: list[GroupPlan], shared: SharedArrays) -> Transport:
        if plan.backend == "serial":
            return InlineTransport(groups, shared.arrays, self.options.step_timeout_s)
        if plan.backend == "thread":
            return ThreadTransport(groups, shared.arrays)
        if plan.backend == "ray":
            from envfleet.transports.ray.transport import RayTransport  # needs Ray

            return RayTransport(groups, shared, self.ray_options)
        from envfleet.transports.process import ProcessTransport  # needs POSIX

        return ProcessTransport(groups, shared, plan.start_method or default_start_method())

    def _check_infos(self, infos: list[GroupInfo], groups: list[GroupPlan]) -> None:
        """Check that what stands in different workers fits together, as each worker did for its own."""
        first = _Spaces(infos[0])
        for info, group in zip(infos[1:], groups[1:], strict=True):
            check_same_spaces(0, first, group.options.first_index, _Spaces(info), self.same_bounds)


class _Spaces:
    """The spaces of a group, under the names an environment gives them."""

    def __init__(self, info: GroupInfo) -> None:
        self.observation_space: Any = info.observation_spaces[0]
        self.action_space: Any = info.action_space
