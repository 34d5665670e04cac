"""Columns of the infos: numbers that sub-environments report travel through shared memory and not by mail.

The owner numbers the columns for the whole fleet: it assigns one to each key whose first value is a number, when that
value arrives by mail, and publishes the table. From then on workers write values of exactly that type into the column.
"""

from __future__ import annotations

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


class Column(NamedTuple):
    """What a column holds: the values of `key` whose type is exactly `kind`."""

    key: str
    kind: type


def _typed(slots: NDArray[np.int64], kind: type) -> NDArray[Any]:
    """View slots of 8 bytes as values of `kind`; a smaller type lies at the start of its slot."""
    typed = slots.view(_DTYPES[kind])
    return typed if typed.itemsize == 8 else typed[..., :: 8 // typed.itemsize]


class ColumnWriter:
    """A worker's side: writes infos into its rows of the columns.

    Args:
        values: Slots of 8 bytes, int64 `(MAX_COLUMNS, n)`.
        given: Which rows gave a value, bool `(MAX_COLUMNS, n)`.
    """

    def __init__(self, values: NDArray[np.int64], given: NDArray[np.bool_]) -> None:
        self._values, self._given = values, given
        self._cells: dict[str, tuple[type, Any, Any]] = {}
        self.is_dirty = True  # with what a predecessor had written, of which the owner may not have read all

    def learn(self, table: list[Column]) -> None:
        """Take the owner's table."""
        for number, (key, kind) in enumerate(table):
            self._cells[key] = kind, _typed(self._values[number], kind).data, self._given[number].data

    def clear(self, rows: Any) -> None:
        """Forget what was written for `rows`; call it before they step."""
        used = len(self._cells)
        self._values[:used, rows] = 0
        self._given[:used, rows] = False

    def write(self, row: int, info: dict[str, Any]) -> dict[str, Any]:
        """Write the numbers of an info, and return what has no column."""
        rest = {}
        for key, value in info.items():
            cell = self._cells.get(key)
            if cell is not None and cell[0] is type(value):
                try:
                    cell[1][row] = value
                except (OverflowError, ValueError):  # an int beyond 64 bits
                    rest[key] = value
                    continue
                cell[2][row] = self.is_dirty = True
            else:
                rest[key] = value
        return rest


class ColumnReader:
    """The owner's side: assigns columns and reads them.

    Args:
        values: Slots of 8 bytes, int64 `(MAX_COLUMNS, num_envs)`.
        given: Which rows gave a value, bool `(MAX_COLUMNS, num_envs)`.

    Attributes:
        table: The columns by number.
    """

    def __init__(self, values: NDArray[np.int64], given: NDArray[np.bool_]) -> None:
        self._values, self._given = values, given
        self.table: list[Column] = []
        self._known: set[str] = set()

    def learn(self, sparse: SparseInfos) -> bool:
        """Assign columns to numbers that came by mail; returns whether the table has grown."""
        size = len(self.table)
        for _, info in sparse:
            for key, value in info.items():
                if (
                    len(self.table) < MAX_COLUMNS
                    and type(value) in _DTYPES
                    and type(key) is str
                    and key not in self._known
                    and key != "final_obs"  # which makes an array of objects whatever it is
                ):
                    self.table.append(Column(key, type(value)))
                    self._known.add(key)
        return len(self.table) > size

    def clear(self, rows: Any) -> None:
        """Forget what a worker that ended has left in its rows."""
        self._values[:, rows] = self._given[:, rows] = 0

    def read(self, rows: Any = slice(None)) -> Dense:
        """Return the columns of `rows` that hold anything; all are parts of one copy."""
        count = len(self.table)
        given, values = self._given[:count, rows].copy(), self._values[:count, rows].copy()
        views = {kind: _typed(values, kind) for kind in {column.kind for column in self.table}}
        columns = zip(self.table, np.any(given, axis=1).tolist(), range(count), strict=True)
        return {key: (views[kind][number], given[number], kind) for (key, kind), is_told, number in columns if is_told}
