"""Tables of scores and attempts as CSV."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

BOARD_COLUMNS = ("rank", "user", "score", "attempts", "attempt", "ended_at")
ATTEMPT_COLUMNS = (
    "id", "user", "env", "started_at", "ended_at", "episodes", "ended", "score", "public_score", "final_score",
    "void_reason",
)  # fmt: skip
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_csv(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    r"""Return rows as CSV with a header. Numbers have all their digits, times are UTC, and `None` is empty.

    A text that a spreadsheet would take for a formula begins with an apostrophe.

    Args:
        rows: The rows; other keys than `columns` are left out.
        columns: Keys; those that end with `_at` are times in seconds since 1970.

    >>> write_csv([{"rank": 1, "user": "=1+1", "ended_at": 1_700_000_000.0}], ("rank", "user", "ended_at"))
    "rank,user,ended_at\n1,'=1+1,2023-11-14T22:13:20+00:00\n"
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(column, row.get(column)) for column in columns] for row in rows)
    return text.getvalue()


def _cell(column: str, value: Any) -> Any:
    if value is None:
        return ""
    if column.endswith("_at"):
        return dt.datetime.fromtimestamp(value, dt.UTC).isoformat(timespec="seconds")
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return repr(value)
