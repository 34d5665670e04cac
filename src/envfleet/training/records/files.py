"""Tables that survive a kill: files that grow by whole lines."""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from envfleet.errors import InvalidArgument
from envfleet.files import naming

_FLUSH_S = 1.0
_FLUSH_ROWS = 4096


class Table:
    """A CSV file that rows are added to, whole lines at a time, about once per second.

    Args:
        path: The file; it is made if need be, and what it holds stays until `cut`.
        columns: Their names, the first line.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self._columns = tuple(columns)
        self._file = path.open("ab", buffering=0)
        self._rows: list[Sequence[Any]] = []
        self._last_flush = time.monotonic()

    def cut(self, size_bytes: int) -> None:
        """Forget all behind the first bytes of the file, and rows that are not written yet.

        Raises:
            InvalidArgument: The file is shorter.
        """
        self._rows = []
        found = os.fstat(self._file.fileno()).st_size
        if found < size_bytes:
            raise InvalidArgument(
                f"{self.path} has {found:,} bytes, but the checkpoint was made when it had {size_bytes:,}: put the "
                "file back that belongs to it, or begin a new run"
            )
        self._file.truncate(size_bytes)
        if not size_bytes:
            self._rows.append(self._columns)
            self.flush()

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows, each with a value per column; floats are written with six digits."""
        self._rows.extend(rows)
        if len(self._rows) >= _FLUSH_ROWS or time.monotonic() - self._last_flush > _FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([_shown(value) for value in row] for row in self._rows)
        self._write(memoryview(text.getvalue().encode()))
        self._rows = []
        self._last_flush = time.monotonic()

    def _write(self, data: memoryview) -> None:
        """Write all of it or, where the disk is full, nothing."""
        before = os.fstat(self._file.fileno()).st_size
        with naming(self.path):
            try:
                while data:
                    data = data[self._file.write(data) :]
            except OSError:
                self._file.truncate(before)
                raise

    def sync(self) -> int:
        """Write what waits down to the disk.

        Returns:
            Bytes in the file.
        """
        self.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Write what waits and let go of the file."""
        if not self._file.closed:
            self.flush()
            self._file.close()


def _shown(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
