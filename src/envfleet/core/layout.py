"""How values of any Gymnasium space lie in typed arrays, and how arrays lie in one block of bytes.

`SpaceLayout` takes a space apart into *leaves*: Box, Discrete, MultiDiscrete and MultiBinary, under any nesting of Dict
and Tuple, become one array each with a row per sub-environment. Every other space (Text, Sequence, Graph, OneOf, a
custom one) travels as objects, one list each. `BlockLayout` places named arrays in one block, on the heap or shared.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.core.leaves import Leaf, actions_named, fit, row_buffers
from envfleet.core.parts import Arrays, Columns, Inventory, Objects, Writer, plan

_MAX_SCALARS = 1024

ALIGNMENT_BYTES = 64
"""A cache line: arrays written by different processes never share one at their borders."""


class SpaceLayout:
    """How values of one Gymnasium space lie in arrays: fixed-shape leaves as typed arrays, other leaves as objects.

    Attributes:
        space: The space of a single value.
        leaves: The fixed-shape leaves, depth-first in the space's own order; leaf `k` lives in `arrays[k]`, of shape
            `(n, *leaf.shape)` and dtype `leaf.dtype`.
        num_objects: How many leaves travel as objects, each in a list of `n` values.

    >>> from gymnasium.spaces import Box, Dict, Discrete
    >>> space = Dict({"camera": Box(0, 255, (2, 2), np.uint8), "goal": Discrete(3)})
    >>> [str(leaf) for leaf in SpaceLayout(space).leaves]
    ['["camera"] (2, 2) uint8', '["goal"] () int64']
    """

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        found = Inventory()
        self.space = space
        self._root = plan(space, (), found)
        self.leaves: tuple[Leaf, ...] = tuple(found.leaves)
        self.num_objects = found.num_objects
        self._single = found.leaves[0] if found.leaves and found.leaves[0].path == () else None
        is_number = self._single is not None and isinstance(space, gymnasium.spaces.Discrete)
        self._scalars = _Scalars(found.leaves[0]) if is_number else None

    def __reduce__(self) -> tuple[Any, ...]:
        # By its space: an unpickled dtype is a copy, which would fail the quick checks by identity.
        return type(self), (self.space,)

    def writer(self, arrays: Arrays, objects: Objects = ()) -> Writer:
        """Return `write(row, value)`, which stores one value at one row of every array and list.

        Raises:
            ObservationError: From `write`: the value does not match the space's structure, shapes or dtypes. Ranges
                are not checked. The row may be written in part.
        """
        return self._root.writer(arrays, objects)

    def buffers(self, arrays: Arrays) -> list[memoryview] | None:
        """Return one buffer per row to assign values to, faster than `writer`, where the space allows that.

        An assignment raises one of `MISFIT` for a value that only `writer` can store or refuse.
        """
        return None if self._single is None else row_buffers(self._single, arrays[0])

    @property
    def is_array(self) -> bool:
        """Whether a batch is one array: the space has one leaf, of a fixed shape, and no nesting."""
        return self._single is not None

    def reader(self, arrays: Arrays, objects: Objects = (), n: int | None = None) -> list[Any]:
        """Return one value per row, in the form Gymnasium hands to a sub-environment; all of them copies.

        Args:
            arrays: One array per leaf.
            objects: One list per object leaf.
            n: How many rows there are; needed only for a space without leaves, such as `Dict({})`.

        Raises:
            InvalidArgument: A number is not in a `Discrete` space, where looking it up finds that at no cost.
        """
        if self._single is not None:
            array = arrays[0]
            if self._scalars is not None:
                try:
                    return [*map(self._scalars.__getitem__, array.tolist())]
                except KeyError:
                    self.unbatch(array, len(array))  # says what is out of range
                    raise
            return list(array if array.ndim == 1 else array.copy())
        arrays = [array.copy() for array in arrays]
        if n is None:
            n = len(arrays[0]) if arrays else len(objects[0]) if objects else 0
        return self._root.rows(arrays, objects, n)

    def batch(self, arrays: Arrays, objects: Objects = ()) -> Any:
        """Return Gymnasium's batched form: the arrays themselves, nested as the space; tuples of objects."""
        if self._single is not None:
            return arrays[0]
        return self._root.batch(arrays, objects)

    def unbatch(self, batched: Any, n: int, name: str = "actions") -> Columns:
        """Check a batched value of `n` rows and take it apart; the inverse of `batch`.

        Args:
            batched: Gymnasium's batched form: an array, list or CPU tensor; a dict or tuple of those; a tuple of `n`
                values for a space without a fixed shape. A dict space also takes a sequence of `n` dicts.
            n: How many rows it must have.
            name: What to call it in messages.

        Returns:
            One array per leaf, which is the given one where that fits, and one list per object leaf.

        Raises:
            InvalidArgument: Wrong structure, shape or dtype, NaN, or numbers that a discrete space does not hold.
        """
        leaf = self._single
        if leaf is None:
            return self._root.unbatch(batched, n, actions_named(name))
        if (
            type(batched) is np.ndarray
            and batched.dtype is leaf.dtype
            and batched.shape == (n, *leaf.shape)
            and leaf.holds(batched)
        ):
            return [batched], []
        return [fit(batched, leaf, actions_named(name), n)], []

    def row(self, arrays: Arrays, objects: Objects, i: int) -> Any:
        """Return a private copy of the value at row `i`."""
        private = [array[[i]] for array in arrays], [[copy.deepcopy(column[i])] for column in objects]
        return self._root.rows(*private, n=1)[0]

    def select(self, batched: Any, indices: Sequence[int] | NDArray[Any]) -> Any:
        """Return the rows `indices` of a batched value, in the same form; arrays are copies."""
        return self._root.select(batched, indices)


class _Scalars(dict[int, Any]):
    """The scalars of a leaf by their values; finding one that was made before takes less than making it."""

    def __init__(self, leaf: Leaf) -> None:
        self._leaf = leaf

    def __missing__(self, value: int) -> Any:
        scalar = self._leaf.dtype.type(value)
        if not self._leaf.holds(np.asarray(scalar)):
            raise KeyError(value)
        if len(self) < _MAX_SCALARS:
            self[value] = scalar
        return scalar


@dataclasses.dataclass(frozen=True)
class Field:
    """One named array of a block: where it starts and what it holds."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int


class BlockLayout:
    """Where each named array lies in one block of bytes; every array starts at a multiple of 64 bytes.

    Attributes:
        fields: The arrays, in the order given.
        size_bytes: Size of the block, at least 64.

    >>> layout = BlockLayout({"rewards": ((8,), "f8"), "terminated": ((8,), "?")})
    >>> layout.size_bytes, [field.offset for field in layout.fields]
    (128, [0, 64])
    """

    def __init__(self, arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any] | str]]) -> None:
        fields, end = [], 0
        for name, (shape, dtype) in arrays.items():
            field = Field(name, tuple(int(length) for length in shape), np.dtype(dtype), end)
            fields.append(field)
            size_bytes = field.dtype.itemsize
            for length in field.shape:  # Python ints: a product in int64 could overflow without a word
                size_bytes *= length
            end += -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.fields: tuple[Field, ...] = tuple(fields)
        self.size_bytes = max(end, ALIGNMENT_BYTES)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ({field.name: (field.shape, field.dtype.str) for field in self.fields},)

    def views(self, buffer: Any) -> dict[str, NDArray[Any]]:
        """Return the arrays of a block: views of `buffer`, writable if it is."""
        return {
            field.name: np.ndarray(field.shape, field.dtype, buffer=buffer, offset=field.offset)
            for field in self.fields
        }

    def allocate(self) -> NDArray[np.uint8]:
        """Return a zeroed block on the heap, aligned to 64 bytes."""
        raw = np.zeros(self.size_bytes + ALIGNMENT_BYTES, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT_BYTES
        return raw[start : start + self.size_bytes]
