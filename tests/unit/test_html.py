from __future__ import annotations

from envfleet.html import html_table


def test_cells_are_escaped() -> None:
    table = html_table([["<b>", 2]], ["a & b", "count"], title='"quoted"')
    assert table == (
        "<table><caption>&quot;quoted&quot;</caption><tr><th>a &amp; b</th><th>count</th></tr>"
        "<tr><td>&lt;b&gt;</td><td>2</td></tr></table>"
    )


def test_no_title_and_no_rows() -> None:
    assert html_table([]) == "<table></table>"
