"""The arrays of a fleet: what each holds, how they lie in one block, and each worker's views of them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envfleet.core.info_columns import MAX_COLUMNS
from envfleet.core.layout import BlockLayout, SpaceLayout
from envfleet.core.origins import ORIGIN_BYTES, ORIGIN_WORDS, Origins

GENERATIONS = 2
"""Output arrays alternate between two generations, so what a step returned survives the next one."""

PROGRESS_WORDS = 8
"""Words of int64 (one cache line) in which a worker tells where it is; see `PlaceWord`."""


class PlaceWord:
    """Which word of a worker's progress line means what."""

    ROW = 0  # local index of the sub-environment it runs, plus 1; 0 when idle
    TURN = 1  # grows with every request
    INTERRUPT = 2  # the place (see `place`) that the owner wants interrupted
    BUSY_NS = 3  # time spent in steps
    STEPS = 4  # sub-environment steps taken
    BEGUN = 5  # group steps begun since this worker started
    BUILDING = 6  # the last turn in which it built a sub-environment again

    @staticmethod
    def place(line: NDArray[np.int64]) -> int:
        """Where the worker is, as one number that never comes again; 0 when idle."""
        row = int(line[PlaceWord.ROW])
        return (int(line[PlaceWord.TURN]) << 32) + row if row else 0

    @staticmethod
    def row(line: NDArray[np.int64]) -> int:
        """Local index of the sub-environment it runs; -1 when idle."""
        return int(line[PlaceWord.ROW]) - 1

    @staticmethod
    def is_building(line: NDArray[np.int64], place: int) -> bool:
        """Whether at `place` it builds a sub-environment again, for which it has the limit of a start."""
        return place >> 32 == int(line[PlaceWord.BUILDING]) > 0


@dataclasses.dataclass(frozen=True)
class ArraysSpec:
    """Everything that decides the arrays of a fleet; picklable, so that each worker derives the same block.

    Attributes:
        observation_space: Of one sub-environment.
        action_space: Of one sub-environment.
        num_envs: Rows.
        num_workers: Progress lines.
        has_finals: Whether last observations of ended episodes are kept beside the observations (`SAME_STEP`).
        has_columns: Whether infos may travel as columns.
        has_origins: Whether workers note how episodes began, for the fleet to know should they not live to tell.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    num_envs: int
    num_workers: int
    has_finals: bool
    has_columns: bool
    has_origins: bool = False

    def block_layout(self) -> BlockLayout:
        """Lay the arrays out in one block."""
        n = self.num_envs
        arrays: dict[str, tuple[tuple[int, ...], np.dtype[Any] | str]] = {
            "rewards": ((GENERATIONS, n), "float64"),
            "flags": ((GENERATIONS, 2, n), "bool"),
            "progress": ((self.num_workers, PROGRESS_WORDS), "int64"),
        }
        for k, leaf in enumerate(SpaceLayout(self.action_space).leaves):
            arrays[f"actions.{k}"] = ((n, *leaf.shape), leaf.dtype)
        for k, leaf in enumerate(SpaceLayout(self.observation_space).leaves):
            arrays[f"observations.{k}"] = ((GENERATIONS, n, *leaf.shape), leaf.dtype)
            if self.has_finals:
                arrays[f"finals.{k}"] = ((GENERATIONS, n, *leaf.shape), leaf.dtype)
        if self.has_columns:
            arrays["info_values"] = ((GENERATIONS, MAX_COLUMNS, n), "int64")
            arrays["info_present"] = ((GENERATIONS, MAX_COLUMNS, n), "bool")
        if self.has_origins:
            arrays["origin_words"] = ((n, ORIGIN_WORDS), "int64")
            arrays["origin_slots"] = ((n, ORIGIN_BYTES), "uint8")
        return BlockLayout(arrays)


@dataclasses.dataclass
class Outputs:
    """One generation of what a step writes, for some rows. Leaves in the order of `SpaceLayout.leaves`."""

    observations: list[NDArray[Any]]
    finals: list[NDArray[Any]]
    rewards: NDArray[np.float64]
    flags: NDArray[np.bool_]  # terminated and truncated, (2, rows)
    info_values: NDArray[np.int64] | None
    info_present: NDArray[np.bool_] | None

    def __post_init__(self) -> None:
        self.terminated, self.truncated = self.flags

    def clear(self, rows: int | slice | list[int]) -> None:
        """Write rows of no reward and no end, as a reset has."""
        self.rewards[rows] = 0.0
        self.flags[:, rows] = False

    @functools.cached_property
    def flat(self) -> tuple[Any, Any, Any]:
        """Rewards, terminated and truncated as memoryviews, which take a scalar faster than arrays do."""
        arrays: Any = (self.rewards, self.terminated, self.truncated)  # numpy does not type its arrays as buffers
        return memoryview(arrays[0]), memoryview(arrays[1]), memoryview(arrays[2])


@dataclasses.dataclass
class FleetArrays:
    """Views of a block: all rows for the fleet, or one worker's slice of them.

    Attributes:
        actions: One array per action leaf, `(rows, *leaf.shape)`.
        outputs: The two generations.
        progress: One line per worker, `(num_workers, PROGRESS_WORDS)`.
        origins: How the running episodes began, where that is kept.
    """

    actions: list[NDArray[Any]]
    outputs: list[Outputs]
    progress: NDArray[np.int64]
    origins: Origins | None

    @classmethod
    def bind(cls, spec: ArraysSpec, buffer: Any, rows: slice = slice(None)) -> FleetArrays:
        """View `buffer` as the arrays of `spec`, restricted to `rows`."""
        views = spec.block_layout().views(buffer)

        def family(name: str) -> list[NDArray[Any]]:
            return [views[key] for key in views if key.startswith(f"{name}.")]

        outputs = [
            Outputs(
                observations=[leaf[g, rows] for leaf in family("observations")],
                finals=[leaf[g, rows] for leaf in family("finals")],
                rewards=views["rewards"][g, rows],
                flags=views["flags"][g, :, rows],
                info_values=views["info_values"][g, :, rows] if spec.has_columns else None,
                info_present=views["info_present"][g, :, rows] if spec.has_columns else None,
            )
            for g in range(GENERATIONS)
        ]
        origins = Origins(views["origin_words"][rows], views["origin_slots"][rows]) if spec.has_origins else None
        return cls([leaf[rows] for leaf in family("actions")], outputs, views["progress"], origins)
