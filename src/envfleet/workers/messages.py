"""Messages between the owner of a fleet and its workers: plans, replies to requests, and saved rows."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from envfleet.errors import Failure
from envfleet.fleet.infos import SparseInfos
from envfleet.options import Options
from envfleet.workers.builders import EnvBuilder
from envfleet.workers.state import EnvState


@dataclasses.dataclass(frozen=True)
class GroupPlan:
    """Plan of one worker's sub-environments, picklable.

    Attributes:
        worker: Index of the worker.
        rows: Indices in the fleet of its sub-environments.
        builders: Builder of each sub-environment.
        options: Options of the fleet; `seed` is set.
        incarnation: Number of workers that had these rows before.
        rng_states: States of the generators to continue with, in the successor of a worker that was recycled.
    """

    worker: int
    rows: range
    builders: tuple[EnvBuilder, ...]
    options: Options
    incarnation: int = 0
    rng_states: tuple[Any, ...] = ()

    def derive_seed(self, row: int, num_rebuilds: int = 0) -> int:
        """Return the seed of a sub-environment that replaces another one, different each time."""
        key = self.rows.start + row, self.incarnation, num_rebuilds
        return int(np.random.SeedSequence(self.options.seed, spawn_key=key).generate_state(1)[0])

    def successor(self, rng_states: tuple[Any, ...] = ()) -> GroupPlan:
        """Return the plan of the worker that replaces this one."""
        return dataclasses.replace(self, incarnation=self.incarnation + 1, rng_states=rng_states)


class GroupInfo(NamedTuple):
    """Description of a group that was built.

    Attributes:
        spaces: Observation and action space of each sub-environment; those that equal the first are one object.
        metadata: Metadata of the first sub-environment.
        spec: Gymnasium's spec of the first sub-environment.
        render_mode: Render mode of the first sub-environment.
        pid: Process of the worker.
        identities: Object ids of the sub-environments, to detect one that is returned twice.
        reward_spaces: Space of each sub-environment's rewards, `None` for numbers.
    """

    spaces: list[tuple[gym.Space[Any], gym.Space[Any]]]
    metadata: dict[str, Any]
    spec: Any
    render_mode: str | None
    pid: int
    identities: list[int]
    reward_spaces: list[gym.spaces.Box | None]


@dataclasses.dataclass(slots=True)
class Reply:
    """Reply of a worker in addition to its arrays; most steps need none.

    Attributes:
        value: Result of a call or of another request.
        infos: Infos, by index in the fleet.
        failures: Failures of sub-environments that raised.
        restarts: Failures of sub-environments that raised and were rebuilt.
        seeds: Seeds of sub-environments that were rebuilt and reset, by index.
        objects: Observation leaves without a fixed shape, by index.
        final_objects: The same for last observations of ended episodes (`SAME_STEP`).
    """

    value: Any = None
    infos: SparseInfos = dataclasses.field(default_factory=list)
    failures: list[Failure] = dataclasses.field(default_factory=list)
    restarts: list[Failure] = dataclasses.field(default_factory=list)
    seeds: dict[int, int | None] = dataclasses.field(default_factory=dict)
    objects: dict[int, list[Any]] = dataclasses.field(default_factory=dict)
    final_objects: dict[int, list[Any]] = dataclasses.field(default_factory=dict)

    def by_row(self) -> dict[int, Reply]:
        """Return a separate reply for each sub-environment, by index."""
        replies: collections.defaultdict[int, Reply] = collections.defaultdict(Reply)
        for index, info in self.infos:
            replies[index].infos.append((index, info))
        for failure in self.failures:
            replies[failure.env_index].failures.append(failure)
        for failure in self.restarts:
            replies[failure.env_index].restarts.append(failure)
        for index, seed in self.seeds.items():
            replies[index].seeds[index] = seed
        for index, values in self.objects.items():
            replies[index].objects[index] = values
        for index, values in self.final_objects.items():
            replies[index].final_objects[index] = values
        return replies


class ResetPlan(NamedTuple):
    """Rows of a group to reset, with a seed and options for each."""

    rows: Sequence[int]
    seeds: Sequence[int | None]
    options: Sequence[Mapping[str, Any] | None]


class RowState(NamedTuple):
    """A saved row of a group."""

    env: EnvState
    observation: Any
    is_awaiting: bool
