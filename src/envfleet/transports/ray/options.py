"""What a person may ask of Ray for the workers of a fleet. Does not import Ray."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from envfleet.errors import InvalidArgument

PLACE_TIMEOUT_S = 60.0


@dataclasses.dataclass(frozen=True)
class RayOptions:
    """`ray_options` of `make`, checked.

    Attributes:
        num_cpus: CPUs that each worker reserves. By default 1; 0 on a local cluster that envfleet started itself, since
            nobody else competes for it.
        num_gpus: GPUs that each worker reserves.
        resources: Custom resources that each worker reserves, by name.
        memory: Bytes of memory that each worker reserves.
        placement_group: Where to place the workers, in whatever bundles have room.
        scheduling_strategy: Ray's: `"DEFAULT"`, `"SPREAD"`, or one of its strategy objects.
        runtime_env: Ray's: packages, working directory, environment variables of the workers.
        max_restarts: How often one worker may be replaced; -1 for no limit but that of `make`.
        shared_memory: Whether workers attach to the driver's memory where they can. If not, all go by actor calls.
        place_timeout_s: Seconds in which Ray must have placed every worker.
    """

    num_cpus: float | None = None
    num_gpus: float | None = None
    resources: Mapping[str, float] | None = None
    memory: float | None = None
    placement_group: Any = None
    scheduling_strategy: Any = None
    runtime_env: Mapping[str, Any] | None = None
    max_restarts: int = -1
    shared_memory: bool = True
    place_timeout_s: float = PLACE_TIMEOUT_S

    @classmethod
    def read(cls, given: Mapping[str, Any] | None) -> RayOptions:
        """Check what a person gave.

        Raises:
            InvalidArgument: An option is unknown, or has a value that cannot be.
        """
        given = dict(given or {})
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(given).difference(known))
        if unknown:
            raise InvalidArgument(f"ray_options has {unknown}, expected some of {known}: check the spelling")
        options = cls(**given)
        for name in ("num_cpus", "num_gpus", "memory"):
            value = getattr(options, name)
            if value is not None and (not isinstance(value, (int, float)) or value < 0):
                raise InvalidArgument(f"ray_options[{name!r}]={value!r}: pass a number that is 0 or more")
        if options.max_restarts < -1:
            raise InvalidArgument(f"ray_options['max_restarts']={options.max_restarts}: pass -1 or more")
        if not options.place_timeout_s > 0:
            raise InvalidArgument(f"ray_options['place_timeout_s']={options.place_timeout_s}: pass seconds above 0")
        if options.placement_group is not None and options.scheduling_strategy is not None:
            raise InvalidArgument(
                "ray_options has placement_group and scheduling_strategy: pass one of them; a bundle is named by "
                "Ray's PlacementGroupSchedulingStrategy"
            )
        return options

    def actor_options(self, num_cpus: float) -> dict[str, Any]:
        """The options of an actor, as Ray takes them; `num_cpus` is the default.

        A worker's actor is never restarted by Ray itself: a fleet has to give the new one its group.
        """
        found: dict[str, Any] = {
            "num_cpus": num_cpus if self.num_cpus is None else self.num_cpus,
            "num_gpus": self.num_gpus,
            "resources": None if self.resources is None else dict(self.resources),
            "memory": self.memory,
            "scheduling_strategy": self._strategy(),
            "runtime_env": None if self.runtime_env is None else dict(self.runtime_env),
            "max_restarts": 0,
            "enable_task_events": False,  # a note about every step, sent to the head, a fifth of what a call costs
        }
        return {name: value for name, value in found.items() if value is not None}

    def _strategy(self) -> Any:
        if self.placement_group is None:
            return self.scheduling_strategy
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(placement_group=self.placement_group)
