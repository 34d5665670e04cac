"""Info columns: numbers and repeating values of infos in shared memory instead of mail.

Problem. Pickling an info takes several microseconds, more than a step of a cheap environment. Most infos hold the same
few keys at every step, with numbers and a few repeating strings, enums or `None` under them.

What does not work. Columns alone lose the order of an info's keys, which `SyncVectorEnv` keeps. A table per worker
would have to be sent again by every successor, and to match replies that are collected in any order.

Solution. The owner learns one `Table` for the whole fleet from infos that arrive by mail, and publishes it:

- *columns*: one per key, for numbers of exactly the first type, or for constants until the first number;
- *layouts*: the keys of an info, in their order, numbered from 1;
- *constants*: strings, enum members and similar values that occurred twice, numbered from 1.

If the layout of an info is known, the worker writes its number to slot 0 of the row and every value that fits to its
column. It mails the other values, and the whole info if its layout is unknown.

What remains. Infos with ever-changing keys, or text that never repeats, go by mail.
"""

from __future__ import annotations

import enum
import itertools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet.fleet.infos import Dense, SparseInfos
from envfleet.workers.arrays import MAX_COLUMNS

# np.bool_ is missing: Gymnasium's form has it in arrays of objects.
_DTYPES: dict[type, np.dtype[Any]] = {
    kind: np.dtype(kind)
    for kind in (
        *(bool, int, float, np.float32, np.float64),
        *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    )
}
_CONSTANT_TYPES = frozenset({str, bytes, type(None), np.bool_})
_ENUM_HASHES: tuple[Any, ...] = enum.Enum.__hash__, int.__hash__, str.__hash__  # others may be undefined, or raise
_MAX_LAYOUTS = _MAX_CONSTANTS = 256
_MAX_LENGTH = 256  # characters of a constant; longer text seldom repeats
_MAX_CANDIDATES = 1024


class Column(NamedTuple):
    """Column of values of `key`: those of exactly the type `kind`, or constants if `kind` is `object`."""

    key: str
    kind: type


class Table(NamedTuple):
    """Columns, layouts and constants, published to the workers.

    Attributes:
        columns: Columns; column `k` is in slot `k + 1`.
        layouts: Keys of infos, in their order.
        constants: Values that columns refer to by number.
    """

    columns: list[Column]
    layouts: list[tuple[Any, ...]]
    constants: list[Any]

    @property
    def num_slots(self) -> int:
        """Number of slots in use, including slot 0 (the layout)."""
        return 1 + len(self.columns)

    @property
    def version(self) -> int:
        """Version of the table, which increases with its size; the lowest byte is `num_slots`."""
        return (len(self.layouts) + len(self.constants)) << 8 | self.num_slots


def _typed(slots: NDArray[np.int64], kind: type) -> NDArray[Any]:
    """View slots of 8 bytes as values of `kind`; a smaller type is at the start of its slot."""
    typed = slots.view(_DTYPES.get(kind, np.int64))
    return typed if typed.itemsize == 8 else typed[..., :: 8 // typed.itemsize]


class ColumnWriter:
    """Writer of a worker's rows of the columns.

    Args:
        values: Slots of 8 bytes, int64 `(1 + MAX_COLUMNS, n)`.
        is_set: Rows that have a value, bool `(1 + MAX_COLUMNS, n)`.

    Attributes:
        is_dirty: True if rows have to be cleared before they step.
    """

    def __init__(self, values: NDArray[np.int64], is_set: NDArray[np.bool_]) -> None:
        self._values, self._is_set = values, is_set
        self._used = values[:1], is_set[:1]
        self._numbers: Any = values[0].data
        self._layouts: dict[tuple[Any, ...], tuple[int, list[tuple[Any, Any, Any]]]] = {}
        self._codes: dict[type, dict[Any, int]] = {}
        self.is_dirty = True  # a predecessor may have written what the owner has not read

    def learn(self, table: Table) -> None:
        """Use the owner's table."""
        cells: dict[Any, tuple[Any, Any, Any]] = {
            key: (kind, _typed(self._values[slot], kind).data, self._is_set[slot].data)
            for slot, (key, kind) in enumerate(table.columns, 1)
        }
        by_mail = None, None, None
        self._used = self._values[: table.num_slots], self._is_set[: table.num_slots]
        self._layouts = {
            keys: (number, [cells.get(key, by_mail) for key in keys]) for number, keys in enumerate(table.layouts, 1)
        }
        self._codes = {}
        for code, value in enumerate(table.constants, 1):
            self._codes.setdefault(type(value), {})[value] = code

    def clear(self, rows: Any) -> None:
        """Clear `rows`; call it before they step."""
        values, is_set = self._used
        values[:, rows] = 0
        is_set[:, rows] = False

    def write(self, row: int, info: dict[str, Any]) -> dict[str, Any]:
        """Write the values that fit the columns; return the rest of the info."""
        layout = self._layouts.get(tuple(info))
        if layout is None:
            return info
        self._numbers[row], cells = layout
        self.is_dirty = True
        rest = {}
        for (key, value), (kind, slots, is_set) in zip(info.items(), cells, strict=True):
            if kind is type(value):
                try:
                    slots[row] = value
                except (OverflowError, ValueError):  # an int beyond 64 bits
                    rest[key] = value
                    continue
                is_set[row] = True
            elif kind is object:
                codes = self._codes.get(type(value))
                code = None if codes is None else codes.get(value)
                if code is None:
                    rest[key] = value
                else:
                    slots[row], is_set[row] = code, True
            else:
                rest[key] = value
        return rest


class ColumnReader:
    """Reader of columns, in the owner; builds the table from infos.

    Args:
        values: Slots of 8 bytes, int64 `(1 + MAX_COLUMNS, num_envs)`.
        is_set: Rows that have a value, bool `(1 + MAX_COLUMNS, num_envs)`.

    Attributes:
        table: Table, to be published whenever its version changes.
    """

    def __init__(self, values: NDArray[np.int64], is_set: NDArray[np.bool_]) -> None:
        self._values, self._is_set = values, is_set
        self.table = Table([], [], [])
        self._slots: dict[str, int] = {}
        self._layouts: set[tuple[Any, ...]] = set()
        self._constants: set[tuple[type, Any]] = set()
        self._candidates: set[tuple[type, Any]] = set()
        self._objects = np.full(1, None, object)

    def learn(self, sparse: SparseInfos, numbers: Sequence[int] = ()) -> None:
        """Extend the table by infos that arrived by mail.

        Args:
            sparse: The infos.
            numbers: Layout number of each row of the call, 0 for infos that arrived as a whole; empty if all did.
        """
        columns, layouts, _ = self.table
        for row, info in sparse:
            for key, value in info.items():
                kind = type(value)
                if kind not in _DTYPES:
                    if not self._is_constant(value):
                        continue
                    kind = object
                slot = self._slots.get(key)
                is_new = slot is None or (columns[slot - 1].kind is object and kind is not object)
                # "final_obs" is always an array of objects.
                if is_new and len(columns) < MAX_COLUMNS and type(key) is str and key != "final_obs":
                    columns.append(Column(key, kind))
                    self._slots[key] = len(columns)
            if not (numbers and numbers[row]):
                keys = tuple(info)
                is_new = keys not in self._layouts and len(layouts) < _MAX_LAYOUTS
                if is_new and not self._slots.keys().isdisjoint(keys):
                    layouts.append(keys)
                    self._layouts.add(keys)

    def _is_constant(self, value: Any) -> bool:
        """Return whether a value is a constant of the table; it becomes one when it occurs for the second time."""
        kind = type(value)
        if kind not in _CONSTANT_TYPES and not (isinstance(value, enum.Enum) and kind.__hash__ in _ENUM_HASHES):
            return False
        if isinstance(value, (str, bytes)) and len(value) > _MAX_LENGTH:
            return False
        typed, constants = (kind, value), self.table.constants
        if typed in self._constants:
            return True
        if typed not in self._candidates:
            if len(self._candidates) == _MAX_CANDIDATES:
                self._candidates.clear()
            self._candidates.add(typed)
            return False
        if len(constants) == _MAX_CONSTANTS:
            return False
        constants.append(value)
        self._constants.add(typed)
        objects = np.full(len(constants) + 1, None, object)
        for code, constant in enumerate(constants, 1):
            objects[code] = constant
        self._objects = objects
        return True

    def clear(self, rows: Any) -> None:
        """Clear the rows of a worker that ended."""
        self._values[:, rows] = self._is_set[:, rows] = 0

    def read(self, rows: Any = slice(None)) -> tuple[Dense, list[int]]:
        """Return the columns with values of `rows` (views of one copy), and the layout number of each row."""
        count = self.table.num_slots
        is_set, values = self._is_set[:count, rows].copy(), self._values[:count, rows].copy()
        numbers: list[int] = values[0].tolist()
        dense: Dense = {}
        for _, keys in self._layouts_of(numbers):
            for key in keys:
                slot = self._slots.get(key)
                if slot is not None and key not in dense:
                    kind = self.table.columns[slot - 1].kind
                    typed = self._objects[values[slot]] if kind is object else _typed(values[slot], kind)
                    dense[key] = typed, is_set[slot], kind
        return dense, numbers

    def _layouts_of(self, numbers: list[int]) -> list[tuple[int, tuple[Any, ...]]]:
        """Return each layout that occurs, with the first row that has it."""
        layouts = self.table.layouts
        return [(numbers.index(number), layouts[number - 1]) for number in dict.fromkeys(numbers) if number]

    def order(self, sparse: SparseInfos, numbers: list[int], first_end: int | None) -> list[Any]:
        """Return all keys in the order of their first occurrence, row by row.

        Args:
            sparse: Infos that arrived by mail.
            numbers: Layout number of each row; it also orders the keys that arrived by mail.
            first_end: First row that has `"final_obs"` and `"final_info"`, before all its other keys.
        """
        final = ("final_obs", "final_info")
        ends: list[tuple[int, tuple[Any, ...]]] = [] if first_end is None else [(first_end, final)]
        mailed = [(row, tuple(info)) for row, info in sparse if not numbers[row]]
        ordered = sorted([*ends, *self._layouts_of(numbers), *mailed], key=operator.itemgetter(0))
        return list(dict.fromkeys(itertools.chain.from_iterable(keys for _, keys in ordered)))
