"""Layout of a space in arrays: one array per leaf of a fixed shape, one list of objects per other leaf.

Each node handles the structure of its values and delegates the parts to its children. To support a new type of space,
register a function with `plan`.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.fleet.leaves import (
    ACTIONS,
    OBSERVATION,
    ArraySpace,
    Leaf,
    Path,
    Wording,
    fit,
    label,
    row_buffers,
    write_values,
)

Writer = Callable[[int, Any], None]
Arrays = Sequence[NDArray[Any]]
Objects = Sequence[list[Any]]
Columns = tuple[list[NDArray[Any]], list[list[Any]]]

_SEQUENCES = (tuple, list, np.ndarray)  # named, because `tuple | list` builds a new type on every call


class SpaceNode(abc.ABC):
    """Node of a space: handles the structure of its values and delegates the parts to its children."""

    @abc.abstractmethod
    def writer(self, arrays: Arrays, objects: Objects) -> Writer:
        """Return `write(row, value)`."""

    @abc.abstractmethod
    def rows(self, arrays: Arrays, objects: Objects, n: int) -> list[Any]:
        """Return `n` values, one per row."""

    @abc.abstractmethod
    def batch(self, arrays: Arrays, objects: Objects) -> Any:
        """Return Gymnasium's batched form, without a copy of the arrays."""

    @abc.abstractmethod
    def unbatch(self, batched: Any, n: int, wording: Wording) -> Columns:
        """Return the checked arrays and objects of a batched value, in leaf order."""


@dataclasses.dataclass(frozen=True)
class _ArrayNode(SpaceNode):
    leaf: Leaf
    index: int

    def writer(self, arrays: Arrays, objects: Objects) -> Writer:
        return write_values(self.leaf, arrays[self.index])

    def rows(self, arrays: Arrays, objects: Objects, n: int) -> list[Any]:
        return list(arrays[self.index])

    def batch(self, arrays: Arrays, objects: Objects) -> Any:
        return arrays[self.index]

    def unbatch(self, batched: Any, n: int, wording: Wording) -> Columns:
        return [fit(batched, self.leaf, wording, n)], []


@dataclasses.dataclass(frozen=True)
class _ObjectNode(SpaceNode):
    path: Path
    index: int

    def writer(self, arrays: Arrays, objects: Objects) -> Writer:
        values = objects[self.index]

        def write(row: int, value: Any) -> None:
            values[row] = copy.deepcopy(value)  # the sub-environment may change what it returned

        return write

    def rows(self, arrays: Arrays, objects: Objects, n: int) -> list[Any]:
        return list(objects[self.index])

    def batch(self, arrays: Arrays, objects: Objects) -> Any:
        return tuple(objects[self.index])

    def unbatch(self, batched: Any, n: int, wording: Wording) -> Columns:
        if not isinstance(batched, _SEQUENCES) or len(batched) != n:
            raise wording.error(
                f"{label(wording.value, self.path)} {_describe(batched)}, expected a tuple of {n} values: "
                f"{wording.advice}"
            )
        return [], [list(batched)]


@dataclasses.dataclass(frozen=True)
class _TupleNode(SpaceNode):
    path: Path
    parts: tuple[SpaceNode, ...]

    def writer(self, arrays: Arrays, objects: Objects) -> Writer:
        writers = [(i, part.writer(arrays, objects)) for i, part in enumerate(self.parts)]
        num_parts = len(writers)

        def write(row: int, value: Any) -> None:
            if not isinstance(value, _SEQUENCES) or len(value) != num_parts:
                raise self._mismatch(value, OBSERVATION)
            for i, write_part in writers:
                write_part(row, value[i])

        return write

    def rows(self, arrays: Arrays, objects: Objects, n: int) -> list[Any]:
        if not self.parts:
            return [()] * n
        return list(zip(*(part.rows(arrays, objects, n) for part in self.parts), strict=True))

    def batch(self, arrays: Arrays, objects: Objects) -> Any:
        return tuple(part.batch(arrays, objects) for part in self.parts)

    def unbatch(self, batched: Any, n: int, wording: Wording) -> Columns:
        if not isinstance(batched, tuple | list) or len(batched) != len(self.parts):
            raise self._mismatch(batched, wording)
        return _join(part.unbatch(value, n, wording) for part, value in zip(self.parts, batched, strict=True))

    def _mismatch(self, value: Any, wording: Wording) -> Exception:
        return wording.error(
            f"{label(wording.value, self.path)} {_describe(value)}, expected a tuple of {len(self.parts)} parts as in "
            f"{label(wording.space, self.path)}: {wording.tuple_advice}"
        )


@dataclasses.dataclass(frozen=True)
class _DictNode(SpaceNode):
    path: Path
    parts: dict[Any, SpaceNode]
    takes_more_keys: bool = False

    def writer(self, arrays: Arrays, objects: Objects) -> Writer:
        writers = [(key, part.writer(arrays, objects)) for key, part in self.parts.items()]
        num_parts = len(writers)

        def write(row: int, value: Any) -> None:
            # A plain dict with all of our keys and the same number of keys cannot contain others.
            if type(value) is not dict or len(value) != num_parts:
                self._check_keys(value, OBSERVATION)
            try:
                for key, write_part in writers:
                    write_part(row, value[key])
            except KeyError:
                self._check_keys(value, OBSERVATION)
                raise

        return write

    def rows(self, arrays: Arrays, objects: Objects, n: int) -> list[Any]:
        values: list[dict[Any, Any]] = [{} for _ in range(n)]
        for key, part in self.parts.items():
            for value, entry in zip(values, part.rows(arrays, objects, n), strict=True):
                value[key] = entry
        return values

    def batch(self, arrays: Arrays, objects: Objects) -> Any:
        return {key: part.batch(arrays, objects) for key, part in self.parts.items()}

    def unbatch(self, batched: Any, n: int, wording: Wording) -> Columns:
        if isinstance(batched, _SEQUENCES) and len(batched) == n:
            batched = self._transpose(batched, wording)
        self._check_keys(batched, wording)
        return _join(part.unbatch(batched[key], n, wording) for key, part in self.parts.items())

    def _transpose(self, values: Iterable[Any], wording: Wording) -> dict[Any, list[Any]]:
        """Turn one dict per sub-environment into one list per key."""
        values = list(values)
        for value in values:
            self._check_keys(value, wording)
        return {key: [value[key] for value in values] for key in self.parts}

    def _check_keys(self, value: Any, wording: Wording) -> None:
        where, expected = label(wording.value, self.path), list(self.parts)
        space = label(wording.space, self.path)
        if not isinstance(value, Mapping):
            raise wording.error(
                f"{where} {_describe(value)}, expected a dict with keys {expected} as in {space}: {wording.advice}"
            )
        if not (self.takes_more_keys or value.keys() <= self.parts.keys()) or not self.parts.keys() <= value.keys():
            raise wording.error(f"{where} has keys {list(value)}, expected {expected} as in {space}: {wording.advice}")


def _join(columns: Iterable[Columns]) -> Columns:
    arrays: list[NDArray[Any]] = []
    objects: list[list[Any]] = []
    for part_arrays, part_objects in columns:
        arrays += part_arrays
        objects += part_objects
    return arrays, objects


def _describe(value: Any) -> str:
    """Describe a value: `is None`, `is a tuple of length 3`, `is an array of shape (2,)`."""
    if value is None:
        return "is None"
    if isinstance(value, np.ndarray):
        return f"is an array of shape {value.shape}"
    if isinstance(value, tuple | list | Mapping):
        return f"is a {type(value).__name__} of length {len(value)}"
    return f"is of type {type(value).__name__}"


@dataclasses.dataclass
class Inventory:
    """Leaves of a space, collected by `plan`."""

    leaves: list[Leaf] = dataclasses.field(default_factory=list)
    num_objects: int = 0
    takes_more_keys: bool = False


@functools.singledispatch
def plan(space: gymnasium.Space[Any], path: Path, inventory: Inventory) -> SpaceNode:
    """Plan how values of a space are laid out; spaces without a rule are sent as objects.

    Register a function for a new type of space with `plan.register`.
    """
    inventory.num_objects += 1
    return _ObjectNode(path, inventory.num_objects - 1)


@plan.register(spaces.Box)
@plan.register(spaces.Discrete)
@plan.register(spaces.MultiDiscrete)
@plan.register(spaces.MultiBinary)
def _plan_array(space: ArraySpace, path: Path, inventory: Inventory) -> SpaceNode:
    # By its string: the dtype of an unpickled space is a copy, which would fail the quick checks by identity.
    dtype = np.dtype(np.dtype(space.dtype).str)
    leaf = Leaf(path, tuple(int(length) for length in space.shape or ()), dtype, space)
    inventory.leaves.append(leaf)
    return _ArrayNode(leaf, len(inventory.leaves) - 1)


@plan.register(spaces.Dict)
def _plan_dict(space: spaces.Dict, path: Path, inventory: Inventory) -> SpaceNode:
    parts = {key: plan(part, (*path, key), inventory) for key, part in space.spaces.items()}
    return _DictNode(path, parts, inventory.takes_more_keys)


@plan.register(spaces.Tuple)
def _plan_tuple(space: spaces.Tuple, path: Path, inventory: Inventory) -> SpaceNode:
    return _TupleNode(path, tuple(plan(part, (*path, i), inventory) for i, part in enumerate(space.spaces)))


_MAX_SCALARS = 1024


class SpaceLayout:
    """Layout of the values of one Gymnasium space: fixed-shape leaves as typed arrays, other leaves as objects.

    Args:
        space: The space of a single value.
        is_checked: If True, `reader` raises an error for numbers outside of a `Discrete` space.
        takes_more_keys: If True, `writer` ignores keys that are not in a `Dict` space.

    Attributes:
        space: The space of a single value.
        leaves: The fixed-shape leaves, depth-first in the space's own order; leaf `k` lives in `arrays[k]`, of shape
            `(n, *leaf.shape)` and dtype `leaf.dtype`.
        num_objects: Number of leaves sent as objects, each in a list of `n` values.
        is_array: True if a batch is one array: the space has one leaf, of a fixed shape, and no nesting.

    >>> from gymnasium.spaces import Box, Dict, Discrete
    >>> space = Dict({"camera": Box(0, 255, (2, 2), np.uint8), "goal": Discrete(3)})
    >>> [str(leaf) for leaf in SpaceLayout(space).leaves]
    ['["camera"] (2, 2) uint8', '["goal"] () int64']
    """

    def __init__(self, space: gymnasium.Space[Any], *, is_checked: bool = True, takes_more_keys: bool = False) -> None:
        inventory = Inventory(takes_more_keys=takes_more_keys)
        self.space, self._is_checked, self._takes_more_keys = space, is_checked, takes_more_keys
        self._root = plan(space, (), inventory)
        self.leaves: tuple[Leaf, ...] = tuple(inventory.leaves)
        self.num_objects = inventory.num_objects
        self._single = inventory.leaves[0] if inventory.leaves and inventory.leaves[0].path == () else None
        self.is_array = self._single is not None
        self._is_number = self.is_array and isinstance(space, gymnasium.spaces.Discrete)

    @functools.cached_property
    def _scalars(self) -> _Scalars:
        return _Scalars(self.leaves[0], self._is_checked)

    def __reduce__(self) -> tuple[Any, ...]:
        # By its space: an unpickled dtype is a copy, which would fail the quick checks by identity.
        options: dict[str, Any] = {"is_checked": self._is_checked, "takes_more_keys": self._takes_more_keys}
        return functools.partial(type(self), **options), (self.space,)

    def writer(self, arrays: Arrays, objects: Objects = ()) -> Writer:
        """Return `write(row, value)`, which stores one value at one row of every array and list.

        Raises:
            ObservationError: From `write`: the value does not match the space's structure, shapes or dtypes. Ranges
                are not checked. The row may be written in part.
        """
        return self._root.writer(arrays, objects)

    def buffers(self, arrays: Arrays) -> list[memoryview] | None:
        """Return one buffer per row; assigning to it is faster than `writer`. `None` for other spaces.

        An assignment raises one of `MISFIT` for a value that `writer` has to store or reject.
        """
        return None if self._single is None else row_buffers(self._single, arrays[0])

    def reader(self, arrays: Arrays, objects: Objects = (), n: int | None = None) -> list[Any]:
        """Return one value per row, in the form that Gymnasium passes to a sub-environment; all are copies.

        Args:
            arrays: One array per leaf.
            objects: One list per object leaf.
            n: Number of rows; needed only for a space without leaves, such as `Dict({})`.

        Raises:
            InvalidArgument: A number is outside of a `Discrete` space; checked only where that costs no time.
        """
        if self._single is not None:
            array = arrays[0]
            if self._is_number:
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

    def unbatch(self, batched: Any, n: int) -> Columns:
        """Check batched actions of `n` rows and split them into leaves; the inverse of `batch`.

        Args:
            batched: Gymnasium's batched form: an array, list or CPU tensor; a dict or tuple of those; a tuple of `n`
                values for a space without a fixed shape. A dict space also takes a sequence of `n` dicts.
            n: Expected number of rows.

        Returns:
            One array per leaf, without a copy where possible, and one list per object leaf.

        Raises:
            InvalidArgument: Wrong structure, shape or dtype, NaN, or numbers outside of a discrete space.
        """
        leaf = self._single
        if leaf is None:
            return self._root.unbatch(batched, n, ACTIONS)
        if (
            type(batched) is np.ndarray
            and batched.dtype is leaf.dtype
            and batched.shape == (n, *leaf.shape)
            and leaf.holds(batched)
        ):
            return [batched], []
        return [fit(batched, leaf, ACTIONS, n)], []

    def apart(self, batched: Any) -> list[Any]:
        """Return the arrays of a batched value, one per leaf, unchecked."""
        leaves = []
        for leaf in self.leaves:
            value = batched
            for key in leaf.path:
                value = value[key]
            leaves.append(value)
        return leaves

    def row(self, arrays: Arrays, objects: Objects, i: int) -> Any:
        """Return a private copy of the value at row `i`, with plain ints for `Discrete`, as in environments."""
        private = [array[[i]] for array in arrays], [[copy.deepcopy(column[i])] for column in objects]
        return _with_ints(self._root.rows(*private, n=1)[0], self.space)


def _with_ints(value: Any, space: gymnasium.Space[Any]) -> Any:
    if isinstance(space, spaces.Discrete):
        return int(value)
    if isinstance(space, spaces.Dict):
        return {key: _with_ints(value[key], part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_with_ints(part, inner) for part, inner in zip(value, space.spaces, strict=True))
    return value


class _Scalars(dict[int, Any]):
    """Cache of the scalars of a leaf by value; a lookup is faster than a new scalar."""

    def __init__(self, leaf: Leaf, is_checked: bool) -> None:
        self._leaf, self._is_checked = leaf, is_checked

    def __missing__(self, value: int) -> Any:
        scalar = self._leaf.dtype.type(value)
        if self._is_checked and not self._leaf.holds(np.asarray(scalar)):
            raise KeyError(value)
        if len(self) < _MAX_SCALARS:
            self[value] = scalar
        return scalar
