"""Arrays of a fleet and their layout in one block of memory that the owner shares with its workers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.fleet.checks import check_reward_shape
from envfleet.fleet.layout import SpaceLayout

ALIGNMENT_BYTES = 64
"""Size of a cache line; arrays start at multiples of it, so that processes never write to the same line."""

GENERATIONS = 2
"""Generations of output arrays, which alternate, so that the results of a step survive the next one."""

MAX_COLUMNS = 32
"""Maximum number of info columns; further keys are sent as objects."""


class BlockLayout:
    """Layout of named arrays in one block of bytes; every array starts at a multiple of 64 bytes.

    >>> BlockLayout({"rewards": ((8,), "f8"), "terminated": ((8,), "?")}).size_bytes
    128
    """

    def __init__(self, arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any] | str]]) -> None:
        self._fields: dict[str, tuple[tuple[int, ...], np.dtype[Any], int]] = {}
        end = 0
        for name, (shape, dtype) in arrays.items():
            form = tuple(int(length) for length in shape), np.dtype(dtype)
            self._fields[name] = (*form, end)
            size_bytes = form[1].itemsize
            for length in form[0]:  # Python ints: a product in int64 could overflow silently
                size_bytes *= length
            end += -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.size_bytes = max(end, ALIGNMENT_BYTES)

    def views(self, buffer: Any) -> dict[str, NDArray[Any]]:
        """Return the arrays of a block: views of `buffer`, writable if it is."""
        return {
            name: np.ndarray(shape, dtype, buffer=buffer, offset=offset)
            for name, (shape, dtype, offset) in self._fields.items()
        }

    def allocate(self) -> NDArray[np.uint8]:
        """Return a zeroed block on the heap, aligned to 64 bytes."""
        raw = np.zeros(self.size_bytes + ALIGNMENT_BYTES, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT_BYTES
        return raw[start : start + self.size_bytes]


@dataclasses.dataclass(frozen=True)
class ArraysSpec:
    """Description of a fleet's arrays; picklable, so that each worker derives the same layout.

    Attributes:
        observations: Layout of one observation.
        actions: Layout of one action.
        num_envs: Number of sub-environments.
        has_finals: True if last observations of ended episodes are kept.
        reward_shape: Shape of one reward; `()` for numbers.
        reward_dtype: Name of the dtype of rewards.
    """

    observations: SpaceLayout
    actions: SpaceLayout
    num_envs: int
    has_finals: bool
    reward_shape: tuple[int, ...] = ()
    reward_dtype: str = "float64"

    @functools.cached_property
    def block(self) -> BlockLayout:
        """Layout of the arrays in one block."""
        n = self.num_envs
        arrays: dict[str, tuple[tuple[int, ...], np.dtype[Any] | str]] = {
            "rewards": ((GENERATIONS, n, *self.reward_shape), self.reward_dtype),
            "flags": ((GENERATIONS, 2, n), "bool"),
            "info_values": ((1 + MAX_COLUMNS, n), "int64"),
            "info_given": ((1 + MAX_COLUMNS, n), "bool"),
            "row_asked": ((n,), "int64"),
            "row_done": ((n,), "int64"),
            "row_flags": ((n,), "int64"),
        }
        for k, leaf in enumerate(self.actions.leaves):
            arrays[f"actions.{k}"] = (n, *leaf.shape), leaf.dtype
        for k, leaf in enumerate(self.observations.leaves):
            arrays[f"observations.{k}"] = (GENERATIONS, n, *leaf.shape), leaf.dtype
            if self.has_finals:
                arrays[f"finals.{k}"] = (GENERATIONS, n, *leaf.shape), leaf.dtype
        return BlockLayout(arrays)


class _VectorRows:
    """Rows of vector rewards; raises an error for values of other shapes, which NumPy would broadcast."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array, self._shape = array, array.shape[1:]

    def __setitem__(self, row: int, reward: Any) -> None:
        check_reward_shape(reward, self._shape)
        self._array[row] = reward


@dataclasses.dataclass
class Outputs:
    """One generation of the results of a step, for some rows. Leaves are in the order of `SpaceLayout.leaves`.

    Attributes:
        observations: One array per leaf.
        finals: Last observations of ended episodes, one array per leaf; empty unless the mode is `SAME_STEP`.
        rewards: float64 `(n,)`, or `(n, k)` of `reward_space`'s dtype.
        flags: Terminated and truncated, bool `(2, n)`.
    """

    observations: list[NDArray[Any]]
    finals: list[NDArray[Any]]
    rewards: NDArray[Any]
    flags: NDArray[np.bool_]

    def clear(self, rows: Any) -> None:
        """Set rewards to 0 and flags to False, as after a reset."""
        self.rewards[rows] = 0.0
        self.flags[:, rows] = False

    @functools.cached_property
    def flat(self) -> tuple[Any, Any, Any]:
        """Rewards, terminated and truncated as memoryviews, to which scalars are assigned faster than to arrays."""
        arrays: tuple[Any, ...] = self.rewards, *self.flags
        rewards: Any = _VectorRows(self.rewards) if self.rewards.ndim > 1 else memoryview(arrays[0])
        return rewards, memoryview(arrays[1]), memoryview(arrays[2])


class FleetArrays:
    """Views of a block: all rows for the owner, or one worker's slice of them.

    Args:
        spec: Description of the arrays.
        buffer: Memory of the block.
        rows: Rows to view.

    Attributes:
        actions: One array per leaf.
        outputs: One `Outputs` per generation.
        info_values: Layouts and columns of the infos, slots of 8 bytes, int64 `(1 + MAX_COLUMNS, n)`.
        info_given: Rows that have a value in each column, bool `(1 + MAX_COLUMNS, n)`.
        row_asked: Number of the last request to step this row alone, int64 `(n,)`.
        row_done: Number of the last such request that is done, int64 `(n,)`.
        row_flags: Word `FLAGS` of that request, int64 `(n,)`.
    """

    def __init__(self, spec: ArraysSpec, buffer: Any, rows: slice = slice(None)) -> None:
        views = spec.block.views(buffer)
        self.actions = [views[f"actions.{k}"][rows] for k in range(len(spec.actions.leaves))]
        count = len(spec.observations.leaves)
        self.outputs = [
            Outputs(
                observations=[views[f"observations.{k}"][g, rows] for k in range(count)],
                finals=[views[f"finals.{k}"][g, rows] for k in range(count if spec.has_finals else 0)],
                rewards=views["rewards"][g, rows],
                flags=views["flags"][g, :, rows],
            )
            for g in range(GENERATIONS)
        ]
        self.info_values, self.info_given = views["info_values"][:, rows], views["info_given"][:, rows]
        self.row_asked, self.row_done, self.row_flags = (
            views[name][rows] for name in ("row_asked", "row_done", "row_flags")
        )
