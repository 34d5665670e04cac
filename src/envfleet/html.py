"""Small HTML tables, with which notebooks show objects."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def html_table(rows: Iterable[Sequence[object]], headings: Sequence[str] = (), title: str = "") -> str:
    """Return a table; everything is escaped.

    Args:
        rows: Cells of each row, shown as `str(cell)`.
        headings: Headings of the columns.
        title: Line above the table.

    >>> html_table([["num_envs", 4]], title="<Fleet>")
    '<table><caption>&lt;Fleet&gt;</caption><tr><td>num_envs</td><td>4</td></tr></table>'
    """
    caption = f"<caption>{html.escape(title)}</caption>" if title else ""
    lines = [_row("th", headings)] if headings else []
    return f"<table>{caption}{''.join([*lines, *(_row('td', row) for row in rows)])}</table>"


def _row(tag: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(str(cell))}</{tag}>' for cell in cells)}</tr>"
