"""A space as a tree of parts: arrays at the leaves, dicts and tuples above them, objects for what has no fixed shape.

Each part knows the form of its own values only and hands the rest to its children. A new type of space needs a function
registered with `plan`; nothing here has to change.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.core.leaves import OBSERVATION, Leaf, Path, Wording, fit, label, write_values
from envfleet.core.ranges import ArraySpace, range_of

Writer = Callable[[int, Any], None]
Arrays = Sequence[NDArray[Any]]
Objects = Sequence[list[Any]]
Columns = tuple[list[NDArray[Any]], list[list[Any]]]

_SEQUENCES = (tuple, list, np.ndarray)  # named, because `tuple | list` builds a new type on every call


class Part(abc.ABC):
    """One node of a space: knows its own values' shape and hands the rest to its children."""

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

    @abc.abstractmethod
    def select(self, batched: Any, indices: Sequence[int] | NDArray[Any]) -> Any:
        """Return a copy of the rows `indices` of a batched value."""


@dataclasses.dataclass(frozen=True)
class _ArrayPart(Part):
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

    def select(self, batched: Any, indices: Sequence[int] | NDArray[Any]) -> Any:
        return batched[np.asarray(indices, dtype=np.intp)]


@dataclasses.dataclass(frozen=True)
class _ObjectPart(Part):
    path: Path
    index: int

    def writer(self, arrays: Arrays, objects: Objects) -> Writer:
        # `list.__setitem__` bound to the list is the writer: no Python frame at all.
        return objects[self.index].__setitem__

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

    def select(self, batched: Any, indices: Sequence[int] | NDArray[Any]) -> Any:
        return tuple(batched[i] for i in indices)


@dataclasses.dataclass(frozen=True)
class _TuplePart(Part):
    path: Path
    parts: tuple[Part, ...]

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

    def select(self, batched: Any, indices: Sequence[int] | NDArray[Any]) -> Any:
        return tuple(part.select(value, indices) for part, value in zip(self.parts, batched, strict=True))

    def _mismatch(self, value: Any, wording: Wording) -> Exception:
        return wording.error(
            f"{label(wording.value, self.path)} {_describe(value)}, expected a tuple of {len(self.parts)} parts as in "
            f"{label(wording.space, self.path)}: {wording.tuple_advice}"
        )


@dataclasses.dataclass(frozen=True)
class _DictPart(Part):
    path: Path
    parts: dict[Any, Part]

    def writer(self, arrays: Arrays, objects: Objects) -> Writer:
        writers = [(key, part.writer(arrays, objects)) for key, part in self.parts.items()]
        num_parts = len(writers)

        def write(row: int, value: Any) -> None:
            # A plain dict with as many keys as ours, all of ours found, has no other keys.
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

    def select(self, batched: Any, indices: Sequence[int] | NDArray[Any]) -> Any:
        return {key: part.select(batched[key], indices) for key, part in self.parts.items()}

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
        if value.keys() != self.parts.keys():
            raise wording.error(f"{where} has keys {list(value)}, expected {expected} as in {space}: {wording.advice}")


def _join(columns: Iterable[Columns]) -> Columns:
    arrays: list[NDArray[Any]] = []
    objects: list[list[Any]] = []
    for part_arrays, part_objects in columns:
        arrays += part_arrays
        objects += part_objects
    return arrays, objects


def _describe(value: Any) -> str:
    """Say what a value is: `is None`, `is a tuple of length 3`, `is an array of shape (2,)`."""
    if value is None:
        return "is None"
    if isinstance(value, np.ndarray):
        return f"is an array of shape {value.shape}"
    if isinstance(value, tuple | list | Mapping):
        return f"is a {type(value).__name__} of length {len(value)}"
    return f"is of type {type(value).__name__}"


class Inventory:
    """Collects what `plan` finds on its way through a space."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self.num_objects = 0


@functools.singledispatch
def plan(space: gymnasium.Space[Any], path: Path, found: Inventory) -> Part:
    """Plan how values of a space are laid out; spaces without a rule of their own travel as objects.

    Register a function for a new type of space with `plan.register`.
    """
    found.num_objects += 1
    return _ObjectPart(path, found.num_objects - 1)


@plan.register(spaces.Box)
@plan.register(spaces.Discrete)
@plan.register(spaces.MultiDiscrete)
@plan.register(spaces.MultiBinary)
def _plan_array(space: ArraySpace, path: Path, found: Inventory) -> Part:
    # By its string: the dtype of an unpickled space is a copy, which would fail the quick checks by identity.
    dtype = np.dtype(np.dtype(space.dtype).str)
    leaf = Leaf(path, tuple(int(length) for length in space.shape or ()), dtype, range_of(space))
    found.leaves.append(leaf)
    return _ArrayPart(leaf, len(found.leaves) - 1)


@plan.register(spaces.Dict)
def _plan_dict(space: spaces.Dict, path: Path, found: Inventory) -> Part:
    return _DictPart(path, {key: plan(part, (*path, key), found) for key, part in space.spaces.items()})


@plan.register(spaces.Tuple)
def _plan_tuple(space: spaces.Tuple, path: Path, found: Inventory) -> Part:
    return _TuplePart(path, tuple(plan(part, (*path, i), found) for i, part in enumerate(space.spaces)))
