"""The arrays of a batch of kernel environments: which there are, where they lie, and the tables of their addresses."""

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
"""An episode that ended: its sub-environment, steps, number there, when it had begun (ns), and sum of rewards."""

LIFE_DTYPE = np.dtype([("rng", RNG_DTYPE), ("episodes", np.int64), ("begun", np.int64), ("unused", np.int64)])
"""What only the start and the end of an episode touch: generator, number of episodes so far, start of this one (ns).

It fills one cache line, as the rows that end are scattered over memory.
"""


@dataclasses.dataclass(frozen=True)
class Buffer:
    """One array with a fixed shape per sub-environment.

    Attributes:
        name: In compiled code.
        dtype: Of an element; may be a record.
        shape: Per sub-environment.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Elements per sub-environment."""
        return math.prod(self.shape)


IS_RESET = Buffer("is_reset", np.dtype(np.bool_))
"""What rollouts hand out besides what steps do: whether the row was only reset."""

NUMBERS = tuple(Buffer(name, np.dtype(np.float32)) for name in ("log_probs", "values", "next_values"))
"""What networks say in a rollout."""


@dataclasses.dataclass(frozen=True)
class RecordBuffers:
    """How the records of one kind lie in memory.

    Records of scalars lie as structure of arrays, so that compiled loops vectorise; records with arrays or
    records in them lie one after the other, so that a step touches one piece of memory.

    Attributes:
        variable: Name of the record in compiled code.
        prefix: Of the buffers' names.
        dtype: Of the record.
    """

    variable: str
    prefix: str
    dtype: np.dtype[Any]

    @property
    def is_split(self) -> bool:
        """Whether there is one array per field, rather than an array of records."""
        return all(self.dtype[name].kind != "V" for name in self.dtype.names or ())

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The arrays."""
        if not self.is_split:
            return (Buffer(self.prefix, self.dtype),)
        return tuple(Buffer(f"{self.prefix}_{name}", self.dtype[name]) for name in self.dtype.names or ())


class BufferPlan:
    """All arrays of a batch of one kernel.

    Args:
        spec: The kernel.

    Attributes:
        state: The state of every sub-environment.
        life: Its generator, and what is known of its episodes.
        params: Its parameters; one entry for all, or one each.
        kept: Arrays that make up a saved state: `state`, `life`, and the episode's `awaiting` (0 running, 1 ended, 2
            was reset in this step), `elapsed` steps and `returns`.
        actions: What steps take.
        shown: Observations and infos, which resets and steps write.
        outputs: Arrays a step hands out.
        ended: The episodes that ended in a step, one after the other.
        finals: Those of `shown` that a reset replaced in `SAME_STEP`.
        all: All of them, in the order of the table of addresses.
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
        self.finals = tuple(dataclasses.replace(one, name=f"final_{one.name}") for one in self.shown)
        self.all = (*self.kept, *self.params.buffers, *self.outputs, self.ended, *self.finals)


def allocate(
    buffers: Iterable[Buffer], num_rows: int, make: Callable[..., NDArray[np.uint8]] = np.empty
) -> dict[str, NDArray[Any]]:
    """Make an array `(num_rows, …)` for each buffer, by name, that begins at a multiple of `ALIGNMENT`.

    Args:
        buffers: Which.
        num_rows: Rows of each.
        make: NumPy's function for their memory.

    Raises:
        OutOfMemory: There is not enough of it.
    """
    arrays = {}
    for buffer in buffers:
        size_bytes = buffer.dtype.itemsize * buffer.size * num_rows
        try:
            memory = make(size_bytes + ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise OutOfMemory(
                f"{num_rows} rows of {buffer.name} need {size_bytes / 1e9:.1f} GB, which there is not: make fewer "
                "sub-environments, or take fewer steps in a rollout"
            ) from error
        first = -memory.ctypes.data % ALIGNMENT
        arrays[buffer.name] = memory[first : first + size_bytes].view(buffer.dtype).reshape(num_rows, *buffer.shape)
    return arrays
