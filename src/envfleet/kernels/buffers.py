"""Arrays of a batch of kernel environments: names, dtypes and shapes, and their allocation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import OutOfMemory
from envfleet.kernels.kernel import KernelSpec
from envfleet.native.rng import RNG_DTYPE

ALIGNMENT = 64
ENDED_DTYPE = np.dtype(
    [("row", np.int64), ("length", np.int64), ("episode", np.int64), ("begun", np.int64), ("total", np.float64)],
    align=True,
)
"""Record of an ended episode: sub-environment, steps, number in it, start time (ns), and sum of rewards."""

LIFE_DTYPE = np.dtype([("rng", RNG_DTYPE), ("episodes", np.int64), ("begun", np.int64), ("unused", np.int64)])
"""Record used only at the start and end of an episode: generator, number of episodes so far, start of this one (ns).

It fills one cache line, because the rows that end are scattered over memory.
"""


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Array with a fixed shape per sub-environment.

    Attributes:
        name: Name in compiled code.
        dtype: Dtype of an element; may be a record.
        shape: Shape per sub-environment.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of elements per sub-environment."""
        return math.prod(self.shape)


IS_RESET = Buffer("is_reset", np.dtype(np.bool_))
"""Additional output of rollouts: flag of steps that only reset the row."""

NUMBERS = tuple(Buffer(name, np.dtype(np.float32)) for name in ("log_probs", "values", "next_values"))
"""Outputs of networks in a rollout."""


@dataclasses.dataclass(frozen=True)
class RecordBuffers:
    """Memory layout of the records of one kind.

    Records of scalars are a structure of arrays, so that compiled loops vectorize. Records that contain arrays or
    records are an array of structures, so that a step touches one piece of memory.

    Attributes:
        variable: Name of the record in compiled code.
        prefix: Prefix of the buffers' names.
        dtype: Dtype of the record.
    """

    variable: str
    prefix: str
    dtype: np.dtype[Any]

    @property
    def is_split(self) -> bool:
        """True if there is one array per field, instead of an array of records."""
        return all(self.dtype[name].kind != "V" for name in self.dtype.names or ())

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The arrays."""
        if not self.is_split:
            return (Buffer(self.prefix, self.dtype),)
        return tuple(Buffer(f"{self.prefix}_{name}", self.dtype[name]) for name in self.dtype.names or ())


class BufferPlan:
    """Buffers of a batch of one kernel.

    Args:
        spec: The kernel.

    Attributes:
        state: State of every sub-environment.
        life: Generator and episode counters of every sub-environment.
        params: Parameters: one entry for all sub-environments, or one each.
        kept: Arrays of a saved state: `state`, `life`, and the episode's `awaiting` (0 running, 1 ended, 2 reset in
            this step), `elapsed` steps and `returns`.
        actions: Actions of a step.
        shown: Observations and infos, which resets and steps write.
        outputs: Arrays that a step returns.
        ended: Episodes that ended in a step, one after the other.
        finals: Observations and infos that a reset replaced in `SAME_STEP`.
        all: All buffers, in the order of the table of addresses.
    """

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec
        self.state = RecordBuffers("state", "s", spec.state.dtype)
        self.life = RecordBuffers("life", "lives", LIFE_DTYPE)
        self.params = RecordBuffers("params", "p", spec.params.dtype)
        self.episode = (
            Buffer("awaiting", np.dtype(np.uint8)),
            Buffer("elapsed", np.dtype(np.int64)),
            Buffer("returns", np.dtype(np.float64)),
        )
        self.kept = (*self.state.buffers, *self.life.buffers, *self.episode)
        self.actions = Buffer("actions", spec.action.dtype, spec.action.shape)
        infos = [(f"i_{name}", spec.state.dtype[name]) for name in spec.info_fields]
        self.shown = (
            Buffer("observations", spec.observation.dtype, spec.observation.shape),
            *(Buffer(name, dtype.base, dtype.shape) for name, dtype in infos),
        )
        self.outputs = (
            self.shown[0],
            Buffer("rewards", np.dtype(np.float64)),
            Buffer("terminated", np.dtype(np.bool_)),
            Buffer("truncated", np.dtype(np.bool_)),
            *self.shown[1:],
        )
        self.ended = Buffer("ended", ENDED_DTYPE)
        self.finals = tuple(dataclasses.replace(each, name=f"final_{each.name}") for each in self.shown)
        self.all = (*self.kept, *self.params.buffers, *self.outputs, self.ended, *self.finals)


def allocate(
    buffers: Iterable[Buffer], num_rows: int, make: Callable[..., NDArray[np.uint8]] = np.empty
) -> dict[str, NDArray[Any]]:
    """Allocate an array `(num_rows, …)` for each buffer, by name, aligned to `ALIGNMENT` bytes.

    Args:
        buffers: Buffers to allocate.
        num_rows: Number of rows of each.
        make: NumPy's function that allocates memory.

    Raises:
        OutOfMemory: There is not enough memory.
    """
    arrays = {}
    for buffer in buffers:
        size_bytes = buffer.dtype.itemsize * buffer.size * num_rows
        try:
            memory = make(size_bytes + ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise OutOfMemory(
                f"{num_rows} rows of {buffer.name} need {size_bytes / 1e9:.1f} GB, more memory than there is: use "
                "fewer sub-environments, or fewer steps per rollout"
            ) from error
        first = -memory.ctypes.data % ALIGNMENT
        arrays[buffer.name] = memory[first : first + size_bytes].view(buffer.dtype).reshape(num_rows, *buffer.shape)
    return arrays
