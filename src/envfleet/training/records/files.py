"""Tables that survive a kill: files that only grow."""

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

_FLUSH_EVERY_S = 1.0
_FLUSH_BYTES = 1 << 16


class Table:
    """A CSV file that rows are added to, about once per second.

    Where the disk is full, what could not be written waits for the next flush.

    Args:
        path: The file; it is made if need be, and what it holds stays until `cut`.
        columns: Their names, the first line.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self._columns = tuple(columns)
        self._file = path.open("ab", buffering=0)
        self._waiting = bytearray()
        self._next_flush_s = 0.0

    def cut(self, size_bytes: int) -> None:
        """Forget all behind the first bytes of the file, and rows that are not written yet.

        Raises:
            InvalidArgument: The file is shorter.
        """
        self._waiting.clear()
        found = os.fstat(self._file.fileno()).st_size
        if found < size_bytes:
            raise InvalidArgument(
                f"{self.path} has {found:,} bytes, but the checkpoint was made when it had {size_bytes:,}: put the "
                "file back that belongs to it, or begin a new run"
            )
        self._file.truncate(size_bytes)
        if not size_bytes:
            self.add([self._columns])

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows, each with a value per column; floats are written with six digits."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([_shown(value) for value in row] for row in rows)
        self._waiting += text.getvalue().encode()
        if len(self._waiting) > _FLUSH_BYTES or time.monotonic() > self._next_flush_s:
            self._flush()

    def _flush(self) -> None:
        with naming(self.path):
            while self._waiting:
                del self._waiting[: self._file.write(self._waiting)]
        self._next_flush_s = time.monotonic() + _FLUSH_EVERY_S

    def sync(self) -> int:
        """Write what waits down to the disk.

        Returns:
            Bytes in the file.
        """
        self._flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Write what waits and let go of the file."""
        with self._file:
            self._flush()


def _shown(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
