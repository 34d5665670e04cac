"""Numeric infos as typed columns in a fleet's shared arrays, so that a worker need not pickle them.

A worker learns the keys of the infos it sees: each pair of key and type gets one of `MAX_COLUMNS` columns of 8-byte
slots, one slot per sub-environment, and a column of flags that tell which slots were written in this step. The fleet is
told of each new column once. An info that does not fit travels as an object (`SparseInfos`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet.core.infos import Dense, SparseInfos, assemble, batch_infos, collect

MAX_COLUMNS = 32
"""Columns per worker. Keys beyond them travel as objects."""

# np.bool_ makes arrays of objects in Gymnasium's form (it is no np.number), but a column can carry it.
_KINDS: dict[type, np.dtype[Any]] = {
    kind: np.dtype(kind)
    for kind in (
        *(bool, int, float, np.bool_, np.float32, np.float64),
        *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    )
}
_PYTHON_KINDS = frozenset({bool, int, float})


class ColumnSpec(NamedTuple):
    """What one column of one worker holds: the values of `key` whose type is exactly `kind`."""

    column: int
    key: str
    kind: type


def _typed(slots: NDArray[np.int64], kind: type) -> NDArray[Any]:
    """View 8-byte slots as values of `kind`; a smaller type lies at the start of its slot."""
    dtype = _KINDS[kind]
    return slots.view(dtype)[..., :: 8 // dtype.itemsize]


class ColumnWriter:
    """A worker's side: writes infos into its slice of the columns.

    Args:
        values: For each generation, the slots of this worker's sub-environments, `(MAX_COLUMNS, rows)`.
        present: For each generation, the flags beside them. The writer keeps memoryviews of both: drop it before the
            block is closed.

    Attributes:
        has_new: Whether columns were learnt since the last `take_new`.
    """

    def __init__(self, values: Sequence[NDArray[np.int64]], present: Sequence[NDArray[np.bool_]]) -> None:
        self._values = list(values)
        self._present = list(present)
        for flags in self._present:
            flags[...] = False  # a worker that was here before may have left some
        # For each generation and type: key -> (slots, flags) as memoryviews, which take a scalar faster than arrays do.
        self._cells: list[dict[type, dict[str, tuple[memoryview, memoryview]]]] = [
            {k: {} for k in _KINDS} for _ in self._values
        ]
        self._current = self._cells[0]
        self._generation = 0
        self._is_dirty = [False] * len(self._values)
        self._num_columns = 0
        self._new: list[ColumnSpec] = []
        self.has_new = False

    def begin(self, generation: int, row: int | None = None) -> None:
        """Start a step that writes `generation`: forget what was written there for all rows, or for one."""
        self._generation = generation
        self._current = self._cells[generation]
        if not self._is_dirty[generation]:
            return
        if row is None:
            self._present[generation][: self._num_columns] = False
            self._is_dirty[generation] = False
        else:
            self._present[generation][: self._num_columns, row] = False

    def write(self, row: int, info: dict[str, Any]) -> bool:
        """Write the info of a row into columns: at most one for each row and `begin`.

        Returns:
            Whether all of it went into columns. If not, none of it did: send it as an object.
        """
        cells = self._current
        self._is_dirty[self._generation] = True
        try:
            for key, value in info.items():
                slots, flags = cells[type(value)][key]
                slots[row] = value
                flags[row] = True
        except KeyError:
            self._present[self._generation][: self._num_columns, row] = False
            return self._learn(info) and self.write(row, info)
        except (OverflowError, ValueError):  # a Python int beyond 64 bits
            self._present[self._generation][: self._num_columns, row] = False
            return False
        return True

    def take_new(self) -> list[ColumnSpec]:
        """Return the columns learnt since the last call; the fleet has to be told of them with the step's reply."""
        if not self._new:
            return []
        new, self._new, self.has_new = self._new, [], False
        return new

    def _learn(self, info: dict[str, Any]) -> bool:
        """Give every value of `info` that has no column one; none if not all can have one."""
        new: list[tuple[str, type]] = []
        for key, value in info.items():
            kind = type(value)
            known = self._current.get(kind)
            if known is None or type(key) is not str or key == "final_obs":  # "final_obs" is an array of objects
                return False
            if key not in known:
                new.append((key, kind))
        if self._num_columns + len(new) > MAX_COLUMNS:
            return False
        for key, kind in new:
            column = self._num_columns
            self._num_columns += 1
            for cells, values, present in zip(self._cells, self._values, self._present, strict=True):
                cells[kind][key] = _typed(values[column], kind).data, present[column].data
            self._new.append(ColumnSpec(column, key, kind))
            self.has_new = True
        return True


class _Part(NamedTuple):
    """One column of the rows [start, stop)."""

    column: int
    kind: type
    start: int
    stop: int


class ColumnReader:
    """The fleet's side: knows the columns of all workers and takes what they wrote.

    Args:
        values: For each generation, the slots of all sub-environments, `(MAX_COLUMNS, num_envs)`.
        present: For each generation, the flags beside them.
        rows: For each worker, the first of its rows and the one behind its last.
    """

    def __init__(
        self,
        values: Sequence[NDArray[np.int64]],
        present: Sequence[NDArray[np.bool_]],
        rows: Sequence[tuple[int, int]],
    ) -> None:
        self._outputs = list(zip(values, present, strict=True))
        self._rows = list(rows)
        self._specs: list[list[ColumnSpec]] = [[] for _ in rows]
        self._num_columns = 0
        self._plan: dict[str, list[_Part]] = {}
        self._used: list[tuple[NDArray[np.int64], NDArray[np.bool_]]] = []

    def know(self, worker: int, specs: Sequence[ColumnSpec]) -> None:
        """Take `specs` for all the columns of a worker."""
        self._specs[worker] = list(specs)
        self._replan()

    def snapshot(self, generation: int, indices: NDArray[np.intp] | None = None) -> ColumnSnapshot | None:
        """Copy what the workers wrote into `generation` in this step.

        Args:
            generation: Which one.
            indices: Sub-environments to copy, in the order of the rows wanted; `None` for all.

        Returns:
            The copy, for `build_infos`; `None` if no worker wrote anything.
        """
        if not self._num_columns:
            return None
        values, present = self._used[generation]
        if indices is not None:
            values, present = values[:, indices], present[:, indices]
        flags = present.tobytes()  # copies and can be searched, both faster than the array can
        if b"\x01" not in flags:
            return None
        return ColumnSnapshot(self._plan, present.shape[1], flags, values.tobytes(), indices)

    def _replan(self) -> None:
        self._num_columns = max((spec.column + 1 for specs in self._specs for spec in specs), default=0)
        parts: dict[tuple[str, type, int], list[tuple[int, int]]] = {}
        for (start, stop), specs in zip(self._rows, self._specs, strict=True):
            for column, key, kind in specs:
                ranges = parts.setdefault((key, kind, column), [])
                if ranges and ranges[-1][1] == start:  # neighbours mostly learn the same columns
                    ranges[-1] = (ranges[-1][0], stop)
                else:
                    ranges.append((start, stop))
        plan: dict[str, list[_Part]] = {}
        for (key, kind, column), ranges in parts.items():
            plan.setdefault(key, []).extend(_Part(column, kind, start, stop) for start, stop in ranges)
        self._plan = plan  # a new one each time: snapshots hold the plan of their step
        n = self._num_columns
        self._used = [(values[:n], present[:n]) for values, present in self._outputs]


class ColumnSnapshot(NamedTuple):
    """What was in the columns in one step."""

    plan: dict[str, list[_Part]]
    num_rows: int
    present: bytes
    values: bytes
    indices: NDArray[np.intp] | None

    def arrays(self) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return flags and slots, `(columns, rows)`."""
        shape = (-1, self.num_rows)
        return np.frombuffer(self.present, np.bool_).reshape(shape), np.frombuffer(self.values, np.int64).reshape(shape)

    def restrict(self, flags: NDArray[np.bool_], part: _Part) -> NDArray[np.bool_]:
        """Return the flags of a column's rows that belong to `part`."""
        if self.indices is not None:
            return flags & (self.indices >= part.start) & (self.indices < part.stop)
        if part.stop - part.start == self.num_rows:
            return flags
        given = np.zeros_like(flags)
        given[part.start : part.stop] = flags[part.start : part.stop]
        return given


def build_infos(num_envs: int, sparse: SparseInfos, snapshot: ColumnSnapshot | None = None) -> dict[str, Any]:
    """Merge infos that came as objects and those that came as columns.

    Equal to `batch_infos` over all of them, the columns after the objects; only the order of the keys may differ.

    Args:
        num_envs: Leading dimension of all arrays.
        sparse: What came as objects.
        snapshot: What came as columns.
    """
    if snapshot is None:
        return batch_infos(num_envs, sparse)
    columns = collect(sparse)
    dense: Dense = {}
    all_present, all_values = snapshot.arrays()
    for key, parts in snapshot.plan.items():
        found = [
            (part.kind, given, _typed(all_values[part.column], part.kind))
            for part in parts
            if (given := snapshot.restrict(all_present[part.column], part)).any()
        ]
        if not found:
            continue
        dtypes = {_KINDS[kind] for kind, _, _ in found}
        if key not in columns and len(dtypes) == 1 and all(kind is not np.bool_ for kind, _, _ in found):
            array, mask = np.zeros(num_envs, dtypes.pop()), np.zeros(num_envs, np.bool_)
            for _, given, values in found:
                np.copyto(array, values, where=given)
                mask |= given
            dense[key] = array, mask
            continue
        # Of several types, or partly sent as objects: back to the values as the sub-environments gave them.
        indices, objects = map(list, columns.get(key, ((), ())))
        for kind, given, values in found:
            taken = values[given]
            indices.extend(np.flatnonzero(given).tolist())
            objects.extend(taken.tolist() if kind in _PYTHON_KINDS else taken)
        columns[key] = indices, objects
    return assemble(num_envs, columns, dense)
